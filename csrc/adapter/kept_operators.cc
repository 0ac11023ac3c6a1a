#include "adapter/kept_operators.h"

namespace coop {

std::string KeptOperators::warn_once(const OpInfo& info, const char* reason, Bytes bytes) {
  if (!warned_.insert(info.id).second) return {};
  const std::string advice =
      info.warns ? "If it is deterministic and writes only what its schema says, "
                   "coop.allow_replay(\"" +
                       info.name.substr(0, info.name.find('.')) + "\") lets it be recomputed."
                 : "Clone the input under the budget to let them be recomputed.";
  const std::string what = info.unknown ? "what " + info.name + " is given and makes stays"
                                        : "results of " + info.name + " stay";
  return "coop: " + what + " in memory (" + std::to_string(bytes) + " bytes now): " + reason +
         ". " + advice;
}

std::map<std::string, std::string> KeptOperators::list() const {
  std::map<std::string, std::string> result;
  for (const auto& [id, reason] : reasons_) result.emplace(op_info(id).name, reason);
  return result;
}

}  // namespace coop
