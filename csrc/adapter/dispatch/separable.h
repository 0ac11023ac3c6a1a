// Operators on lists of tensors that use nothing of one index for what they make of another: run on
// slices of their lists, one after the other, they make the same bits.
//
// That takes that torch runs each slice in the way in which it would run the whole: see
// find_parts().
#pragma once

#include <ATen/core/function_schema.h>

namespace coop {

bool is_separable(const c10::FunctionSchema& schema);

}  // namespace coop
