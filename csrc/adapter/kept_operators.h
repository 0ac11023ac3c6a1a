// The operators whose results stay in memory because they are not replayed (Rule 9).
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "adapter/dispatch/op_info.h"
#include "core/types.h"

namespace coop {

// One engine's, under its lock.
class KeptOperators {
 public:
  void add(const OpInfo& info, const char* reason) { reasons_.emplace(info.id, reason); }
  // What to warn of, with the bytes that stay now; empty when that operator was warned of before.
  std::string warn_once(const OpInfo& info, const char* reason, Bytes bytes);
  // By name, with the reason.
  std::map<std::string, std::string> list() const;

 private:
  std::unordered_map<int32_t, const char*> reasons_;  // by OpInfo::id
  std::unordered_set<int32_t> warned_;
};

}  // namespace coop
