#include "adapter/call/rng.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <array>
#include <functional>
#include <mutex>

#include "adapter/locks.h"

namespace coop {

namespace {

void assign(at::Generator& to, const at::Generator& from) {
  const std::lock_guard<std::mutex> guard(to.mutex());
  if (to.device().is_cpu()) {
    auto* target = at::check_generator<at::CPUGeneratorImpl>(to);
    auto* source = at::check_generator<at::CPUGeneratorImpl>(from);
    target->set_engine(source->engine());
    target->set_next_float_normal_sample(source->next_float_normal_sample());
    target->set_next_double_normal_sample(source->next_double_normal_sample());
  } else {
    // Counter based (Philox): a seed and an offset are the whole state.
    to.set_current_seed(from.current_seed());
    to.set_offset(from.get_offset());
  }
}

}  // namespace

DrawLock::DrawLock(const at::Generator& generator) {
  static auto* locks = new std::array<std::recursive_mutex, 16>();
  const size_t hash = std::hash<void*>()(generator.unsafeGetGeneratorImpl());
  lock_ = std::unique_lock(locks->at((hash >> 6) % locks->size()), std::try_to_lock);
  if (lock_.owns_lock()) return;
  WithoutPython python;
  python.give_up();
  lock_.lock();
}

RngState::RngState(const at::Generator& generator) : generator_(generator) {
  const std::lock_guard<std::mutex> guard(generator_.mutex());
  captured_ = generator_.clone();
}

void RngState::restore() const {
  at::Generator generator = generator_;
  assign(generator, captured_);
}

RngState::Drawn RngState::drawn_by(const at::Generator& generator) {
  if (!generator.device().is_cpu()) return {};
  at::Generator drawn = generator;
  auto* impl = at::check_generator<at::CPUGeneratorImpl>(drawn);
  const std::lock_guard<std::mutex> guard(impl->mutex_);
  const at::mt19937_data_pod table = impl->engine().data();
  return {static_cast<uint64_t>(table.left_), table.state_.front(), table.state_.back()};
}

bool RngState::has_drawn() const {
  if (!generator_.device().is_cpu()) {
    return captured_.current_seed() != generator_.current_seed() ||
           captured_.get_offset() != generator_.get_offset();
  }
  auto* before = at::check_generator<at::CPUGeneratorImpl>(captured_);
  auto* now = at::check_generator<at::CPUGeneratorImpl>(generator_);
  // Every other normal number comes without a draw.
  return drawn_by(captured_) != drawn_ ||
         before->next_float_normal_sample() != now->next_float_normal_sample() ||
         before->next_double_normal_sample() != now->next_double_normal_sample();
}

RngState::Guard::Guard(const RngState& state) : generator_(state.generator_) {
  {
    const std::lock_guard<std::mutex> guard(generator_.mutex());
    live_ = generator_.clone();
  }
  assign(generator_, state.captured_);
}

RngState::Guard::~Guard() { assign(generator_, live_); }

at::Generator default_generator(c10::Device device) {
  return at::globalContext().defaultGenerator(device);
}

}  // namespace coop
