#include "adapter/storage/evicted_message.h"

#include <algorithm>
#include <optional>

#include "adapter/call/frozen_call.h"
#include "adapter/trace/source.h"

namespace coop {

namespace {

// The shape of an operator's result; empty if it is not known.
std::optional<c10::IntArrayRef> shape_of(const FrozenCall& call, size_t output) {
  size_t next = 0;
  for (const FrozenTensor& tensor : call.tensors) {
    if (tensor.write >= 0 && call.num_fresh + static_cast<size_t>(tensor.write) == output) {
      return tensor.sizes(call.dimensions);
    }
    if (tensor.defined) next = tensor.first_dimension + 2 * tensor.num_dimensions;
  }
  for (size_t i = 0; next < call.dimensions.size(); ++i) {
    const int64_t num_dimensions = call.dimensions[next];
    if (i == output) {
      if (num_dimensions < 0) break;  // not known
      return c10::IntArrayRef(call.dimensions.data() + next + 1, num_dimensions);
    }
    next += 1 + static_cast<size_t>(std::max<int64_t>(num_dimensions, 0));
  }
  return {};
}

}  // namespace

std::string evicted_message(const Value& value, Bytes bytes) {
  std::string message;
  message.reserve(256);
  message +=
      "coop: this tensor's bytes are evicted, so its memory cannot be read directly. They are ";
  message += std::to_string(bytes);
  message += " bytes";
  if (const auto* call = dynamic_cast<const FrozenCall*>(value.recipe)) {
    if (const auto shape = shape_of(*call, value.output_index)) {
      message += " of shape (";
      for (size_t i = 0; i < shape->size(); ++i) {
        if (i > 0) message += ", ";
        message += std::to_string((*shape)[i]);
      }
      message += ")";
    }
    message += ", made by ";
    message += call->info->name;
    if (call->origin.source != 0) {
      const SourceLine line = source(call->origin.source);
      message += line.backward ? " in the backward pass of " : " in ";
      message += line.file + ":" + std::to_string(line.line);
    }
  }
  message += ". Call coop.materialize(tensor) first, or coop.keep(tensor) to keep them in memory.";
  return message;
}

}  // namespace coop
