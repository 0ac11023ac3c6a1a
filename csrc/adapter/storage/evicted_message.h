// What code is told that touches the memory of an evicted tensor (Rule 13).
#pragma once

#include <string>

#include "core/model/value.h"

namespace coop {

std::string evicted_message(const Value& value, Bytes bytes);

}  // namespace coop
