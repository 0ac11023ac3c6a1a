#include "adapter/call/parts.h"

#include <ATen/ATen.h>
#include <ATen/core/List.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "adapter/call/boxed_invocation.h"
#include "adapter/call/handler.h"
#include "adapter/engine.h"
#include "adapter/errors.h"

namespace coop {

namespace {

// Of the budget: operands of more than the first are run in parts of the second at most.
constexpr Bytes kWhole = 4;
constexpr Bytes kPart = 16;
// A part as large takes the link 10 ms, and the GPU a thousandth of that to start.
constexpr Bytes kLargestPart = Bytes{512} << 20;

using Tensors = c10::List<at::Tensor>;

// Whether torch takes the tensor for what its foreach kernels are made for.
bool is_plain(const at::Tensor& tensor, const at::Tensor& first) {
  return tensor.defined() && tensor.has_storage() && tensor.layout() == c10::kStrided &&
         tensor.is_floating_point() && tensor.dtype() == first.dtype() &&
         tensor.device() == first.device() && tensor.is_non_overlapping_and_dense() &&
         !tensor.is_neg();
}

bool is_alike(const at::Tensor& tensor, const at::Tensor& other) {
  return tensor.sizes() == other.sizes() && tensor.strides() == other.strides();
}

// The lists of an operator, one entry for each of its arguments.
class Lists {
 public:
  Lists(const OpInfo& info, const c10::OperatorHandle& op, const Invocation& invocation)
      : info_(info) {
    const auto& arguments = op.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      arguments_.push_back(invocation.argument(i));
      const c10::IValue& argument = arguments_.back();
      if (!argument.isList() || argument.toListRef().empty()) continue;
      const auto size = static_cast<int64_t>(argument.toListRef().size());
      if (size_ == 0) size_ = size;
      is_even_ &= size == size_;
      lists_.push_back(i);
      // Of each tensor one number, which torch treats by itself.
      is_step_.push_back(arguments[i].name() == "state_steps");
    }
  }

  int64_t size() const { return size_; }
  bool are_even() const { return size_ > 1 && is_even_; }
  const std::vector<c10::IValue>& arguments() const { return arguments_; }

  // Whether the parts are run as the whole would be. They are even.
  bool can_be_sliced() const {
    std::optional<Tensors> reference;
    for (size_t l = 0; l < lists_.size(); ++l) {
      const c10::IValue& list = arguments_[lists_[l]];
      if (!list.isTensorList()) {
        // Numbers: of real ones nothing becomes complex.
        for (const c10::IValue& number : list.toListRef()) {
          if (number.isComplexDouble()) return false;
        }
        continue;
      }
      const Tensors tensors = tensors_of(lists_[l]);
      const at::Tensor head = tensors.get(0);
      if (!reference) reference = tensors;
      for (int64_t i = 0; i < size_; ++i) {
        const at::Tensor tensor = tensors.get(static_cast<size_t>(i));
        if (!is_plain(tensor, head)) return false;
        if (!is_step_[l] && !is_alike(tensor, reference->get(static_cast<size_t>(i)))) return false;
      }
    }
    return reference.has_value() && written_is_distinct();
  }

  c10::Device device() const {
    for (const size_t l : lists_) {
      if (arguments_[l].isTensorList()) return at::Tensor(tensors_of(l).get(0)).device();
    }
    return c10::kCPU;
  }

  // Of each index, on the device.
  std::vector<Bytes> bytes(c10::Device device) const {
    std::vector<Bytes> result(static_cast<size_t>(size_), 0);
    for (const size_t l : lists_) {
      if (!arguments_[l].isTensorList()) continue;
      const Tensors tensors = tensors_of(l);
      if (at::Tensor(tensors.get(0)).device().type() != device.type()) continue;
      for (int64_t i = 0; i < size_; ++i) {
        const at::Tensor tensor = tensors.get(static_cast<size_t>(i));
        if (tensor.layout() != c10::kStrided) continue;  // a gradient of few rows has no such size
        result[static_cast<size_t>(i)] += static_cast<Bytes>(tensor.nbytes());
      }
    }
    return result;
  }

  torch::jit::Stack slice(const Part& part) const {
    torch::jit::Stack stack(arguments_.begin(), arguments_.end());
    for (const size_t l : lists_) {
      const c10::List<c10::IValue> whole = arguments_[l].toList();
      c10::impl::GenericList sliced(whole.elementType());
      sliced.reserve(static_cast<size_t>(part.end - part.begin));
      for (int64_t i = part.begin; i < part.end; ++i)
        sliced.push_back(whole.get(static_cast<size_t>(i)));
      stack[l] = std::move(sliced);
    }
    return stack;
  }

 private:
  Tensors tensors_of(size_t argument) const { return arguments_[argument].toTensorList(); }

  // What one index writes, no other uses.
  bool written_is_distinct() const {
    struct User {
      int64_t index;
      bool written;
    };
    std::unordered_map<const c10::StorageImpl*, User> users;
    for (const size_t l : lists_) {
      if (!arguments_[l].isTensorList()) continue;
      const Tensors tensors = tensors_of(l);
      const bool written = info_.writes[l];
      for (int64_t i = 0; i < size_; ++i) {
        const at::Tensor tensor = tensors.get(static_cast<size_t>(i));
        const auto [user, is_new] =
            users.try_emplace(tensor.storage().unsafeGetStorageImpl(), User{i, written});
        if (is_new) continue;
        if (user->second.index != i && (written || user->second.written)) return false;
        user->second.written |= written;
      }
    }
    return true;
  }

  const OpInfo& info_;
  std::vector<c10::IValue> arguments_;
  std::vector<size_t> lists_;  // which of them are lists, and not empty
  std::vector<bool> is_step_;
  int64_t size_ = 0;
  bool is_even_ = true;  // all lists are as long
};

// One operator in parts.
class PartRunner {
 public:
  PartRunner(Engine& engine, const OpInfo& info, uint16_t source, const c10::OperatorHandle& op,
             c10::DispatchKeySet keys, const Invocation& invocation)
      : engine_(engine),
        info_(info),
        source_(source),
        op_(op),
        keys_(keys),
        lists_(info, op, invocation),
        made_(static_cast<size_t>(lists_.size())) {}

  void run(const Part& part) {
    if (fits(part)) return;
    const int64_t middle = part.begin + (part.end - part.begin) / 2;
    run({part.begin, middle});
    run({middle, part.end});
  }

  // One list of what they made, index by index.
  std::vector<c10::IValue> results() {
    if (info_.num_results == 0) return {};
    c10::List<at::Tensor> list;
    for (at::Tensor& tensor : made_) list.push_back(std::move(tensor));
    return {std::move(list)};
  }

 private:
  // False: not as it is.
  bool fits(const Part& part) {
    torch::jit::Stack stack = lists_.slice(part);
    BoxedInvocation invocation(info_, op_, &stack);
    try {
      Handler(engine_, info_, source_, op_, keys_, invocation, nullptr).run();
    } catch (const BudgetExceeded& error) {
      if (part.end - part.begin < 2) fail(error);
      return false;
    }
    if (info_.num_results > 0) {
      const Tensors tensors = stack.back().toTensorList();
      for (int64_t i = part.begin; i < part.end; ++i) {
        made_[static_cast<size_t>(i)] = tensors.get(static_cast<size_t>(i - part.begin));
      }
    }
    num_done_ += part.end - part.begin;
    return true;
  }

  [[noreturn]] void fail(const BudgetExceeded& error) {
    Updated updated;
    if (info_.has_writes && num_done_ > 0) updated = {num_done_, lists_.size()};
    throw_out_of_budget(info_.name, error.replaying, error.shortage, updated);
  }

  Engine& engine_;
  const OpInfo& info_;
  const uint16_t source_;
  const c10::OperatorHandle& op_;
  const c10::DispatchKeySet keys_;
  const Lists lists_;
  std::vector<at::Tensor> made_;
  int64_t num_done_ = 0;
};

}  // namespace

// Without hardware there is no budget yet: as if it were what the operator uses.
Bytes part_bytes(const Engine& engine, Bytes operand_bytes) {
  const Config& config = engine.config().core;
  if (config.host_bytes == 0) return 0;
  const bool is_planned = engine.memory().device().is_meta();
  const Bytes budget = is_planned ? operand_bytes : config.budget;
  if (operand_bytes <= budget / kWhole) return 0;
  return std::max<Bytes>(std::min(budget / kPart, kLargestPart), 1);
}

std::vector<Part> find_parts(const Engine& engine, const OpInfo& info,
                             const c10::OperatorHandle& op, const Invocation& invocation) {
  std::vector<Part> parts;
  if (!info.separable || engine.config().core.host_bytes == 0) return parts;
  const Lists lists(info, op, invocation);
  if (!lists.are_even()) return parts;
  const c10::Device device = lists.device();
  const c10::Device budgets = engine.memory().device();
  if (device.type() != budgets.type() && !budgets.is_meta()) return parts;
  const std::vector<Bytes> bytes = lists.bytes(device);
  Bytes all = 0;
  for (const Bytes each : bytes) all += each;
  const Bytes most = part_bytes(engine, all);
  if (most == 0 || !lists.can_be_sliced()) return parts;
  size_t largest = 0;
  Bytes largest_bytes = 0;
  Bytes held = 0;
  Bytes spare = 0;  // of it, what is above `most`
  for (int64_t i = 0; i < lists.size(); ++i) {
    const Bytes next = bytes[static_cast<size_t>(i)];
    // A bias stays with its weight, however large that is.
    const bool joins = held + next <= most || spare + next <= most / 8;
    if (parts.empty() || !joins) {
      parts.push_back({i, i});
      held = spare = 0;
    }
    if (held > 0 && held + next > most) spare += next;
    held += next;
    parts.back().end = i + 1;
    if (held > largest_bytes) {
      largest_bytes = held;
      largest = parts.size() - 1;
    }
  }
  const auto place = parts.begin() + static_cast<std::ptrdiff_t>(largest);
  std::rotate(parts.begin(), place, place + 1);
  return parts;
}

void run_in_parts(Engine& engine, const OpInfo& info, uint16_t source,
                  const c10::OperatorHandle& op, c10::DispatchKeySet keys, Invocation& invocation,
                  const std::vector<Part>& parts) {
  PartRunner runner(engine, info, source, op, keys, invocation);
  for (const Part& part : parts) runner.run(part);
  invocation.set_results(runner.results());
}

}  // namespace coop
