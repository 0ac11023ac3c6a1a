// The kinds of tensors that torch has, and which of them a recipe can make again.
//
// Note [Kinds of tensors]
// A recipe keeps geometry over a value (Rule 2), and a replay makes a plain tensor of that. Some
// tensors have more state than that: a quantizer, other tensors that they are made of, an object
// of Python's. An operator that takes one of those is held: what it uses stays while it runs, what
// it writes becomes a root, and what it makes is kept (Rule 9). What torch may return does not
// matter: of a result only the storage is taken, and the tensor over it lives on.
//
// Kinds are told by dispatch keys, of which the table in tensor_kinds.cc lists all. A key that it
// does not list, a class of tensors that it does not know, and sizes that are symbols are held.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/FunctionRef.h>

#include <string>
#include <typeinfo>
#include <vector>

namespace coop {

// Every key of a tensor that a replay can make again, and those of Python's wrappers, which are
// understood where Python runs the operator itself and nothing is ever replayed.
struct UnderstoodKeys {
  c10::DispatchKeySet replayed;
  c10::DispatchKeySet fake;
};
extern const UnderstoodKeys kUnderstood;

// Whether all there is to the tensor is geometry over its storage, and keys. `fake`: it is one of
// torch's fake tensors, and it is not replayed.
inline bool is_understood(const c10::TensorImpl& tensor, bool fake) {
  const c10::DispatchKeySet known = fake ? kUnderstood.fake : kUnderstood.replayed;
  return (tensor.key_set().raw_repr() & ~known.raw_repr()) == 0 &&
         typeid(tensor) == typeid(c10::TensorImpl) && !tensor.has_symbolic_sizes_strides();
}

// The tensors that one that is not understood is made of, besides its own storage. Some are made
// for the occasion.
void for_each_part(const at::Tensor& tensor, c10::function_ref<void(const at::Tensor&)> visit);

// The table, for tests.
struct KindRow {
  std::string key;    // of torch's: a functionality, or a backend
  bool backend;       // which of the two
  bool listed;        // the table has it
  bool replayed;      // a tensor with it is made again; else it is held
  std::string state;  // what such a tensor has besides its storage
};
std::vector<KindRow> tensor_kinds();

}  // namespace coop
