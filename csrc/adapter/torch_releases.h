// What differs between the releases of torch that we build against, 2.11 to 2.15: all of it.
//
// Each is asked of torch's headers where they can answer (is it there, which comes first), and of
// the number of the release only where they cannot. Elsewhere there are two more that answer for
// themselves: tensor kinds are looked up by name (dispatch/tensor_kinds.cc), and the CUDA
// allocator's snapshot() has both signatures, of which one overrides (cuda/allocator.cc).
#pragma once

#include <c10/core/DispatchKey.h>
#include <c10/core/StorageImpl.h>
#include <torch/version.h>

#include "adapter/call/invocation.h"

namespace coop {

// Before 2.13: see dispatch/tuple_out.h.
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
inline constexpr bool kTupleOutDangles = true;
#else
inline constexpr bool kTupleOutDangles = false;
#endif

// Before 2.13 (2.12 was not looked at; the order decides): see dispatch/python_first.h.
inline constexpr bool kPythonIsBelowUs = kOurKey > c10::DispatchKey::Python;

namespace {

// Torch 2.11 can make a storage throw on access, but not take that back: its flag is set directly.
bool& throws_on_access(c10::StorageImpl& impl);
template <bool c10::StorageImpl::* Flag>
struct Exposed {
  friend bool& throws_on_access(c10::StorageImpl& impl) { return impl.*Flag; }
};
template struct Exposed<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

template <typename Impl>
[[maybe_unused]] void allow_access(Impl* impl) {
  if constexpr (requires { impl->clear_data_ptr_access_error_msg_(); }) {
    impl->clear_data_ptr_access_error_msg_();
  } else {
    throws_on_access(*impl) = false;
  }
}

}  // namespace

}  // namespace coop
