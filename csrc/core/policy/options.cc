#include "core/policy/options.h"

#include <stdexcept>
#include <utility>

namespace coop {

namespace {

using Switch = std::pair<std::string_view, bool PolicyOptions::*>;

constexpr Switch kSwitches[] = {
    {"count_excess", &PolicyOptions::count_excess},
    {"remember_runners_up", &PolicyOptions::remember_runners_up},
    {"cap_costs", &PolicyOptions::cap_costs},
    {"move_expensive", &PolicyOptions::move_expensive},
    {"protect_backward", &PolicyOptions::protect_backward},
    {"discount_unneeded", &PolicyOptions::discount_unneeded},
    {"keep_needed", &PolicyOptions::keep_needed},
    {"join_early", &PolicyOptions::join_early},
    {"retry_operators", &PolicyOptions::retry_operators},
    {"retry_replays", &PolicyOptions::retry_replays},
    {"move_dead_roots", &PolicyOptions::move_dead_roots},
    {"gather_gradients", &PolicyOptions::gather_gradients},
    {"move_gradients_aside", &PolicyOptions::move_gradients_aside},
    {"foresight", &PolicyOptions::foresight},
};

}  // namespace

PolicyOptions PolicyOptions::coop_as_published() {
  PolicyOptions options;
  for (const auto& [name, field] : kSwitches) options.*field = false;
  return options;
}

PolicyOptions PolicyOptions::dtr() {
  PolicyOptions options = coop_as_published();
  options.search = Search::kValue;
  return options;
}

// MegEngine's DTE has a last resort of its own kind; the others are published without.
PolicyOptions PolicyOptions::dte() {
  PolicyOptions options = coop_as_published();
  options.search = Search::kValueAndFreeNeighbour;
  options.retry_operators = true;
  options.move_gradients_aside = true;
  return options;
}

PolicyOptions PolicyOptions::named(const std::string& name) {
  if (name == "coop") return coop();
  if (name == "coop-paper") return coop_as_published();
  if (name == "dtr") return dtr();
  if (name == "dte") return dte();
  throw std::invalid_argument("unknown policy '" + name + "'; choose coop, coop-paper, dtr or dte");
}

PolicyOptions PolicyOptions::without_window() const {
  PolicyOptions options = *this;
  if (options.search == Search::kWindow) options.search = Search::kValue;
  options.cap_costs = options.move_expensive = options.protect_backward = false;
  options.foresight = false;
  return options;
}

PolicyOptions PolicyOptions::without(std::string_view name) const {
  PolicyOptions options = *this;
  for (const auto& [known, field] : kSwitches) {
    if (known != name) continue;
    options.*field = false;
    return options;
  }
  throw std::invalid_argument("a policy has no switch '" + std::string(name) + "'");
}

std::vector<std::string> PolicyOptions::names() {
  std::vector<std::string> result;
  for (const auto& [name, field] : kSwitches) result.emplace_back(name);
  return result;
}

}  // namespace coop
