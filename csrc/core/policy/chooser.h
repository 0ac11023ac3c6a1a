// Finds a plan for a request: a runner-up of an earlier search that is still cheap, or else the
// policy's, for which the scores are brought up to date.
#pragma once

#include <memory>
#include <utility>

#include "core/foresight/foresight.h"
#include "core/host.h"
#include "core/journal.h"
#include "core/policy/policy.h"
#include "core/policy/scores.h"
#include "core/space/space.h"

namespace coop {

class Chooser {
 public:
  Chooser(const PolicyOptions& options, const Graph& graph, const Space& space, Scores& scores,
          const CopyCost& copy_cost, const Host& host, const Foresight& foresight, Journal& journal,
          std::unique_ptr<const Policy> policy)
      : options_(options),
        graph_(graph),
        space_(space),
        scores_(scores),
        copy_cost_(copy_cost),
        host_(host),
        foresight_(foresight),
        journal_(journal),
        policy_(policy ? std::move(policy) : make_policy(options)) {}

  // An empty plan: nothing helps.
  Plan choose(Bytes bytes);

 private:
  Plan search(Bytes bytes);
  Plan next_runner_up(Bytes bytes, int64_t* num_looked);
  // A window from the block that contains its first byte on, as it is scored now; empty when a
  // barrier is in the way.
  Window rescored(const RankedWindow& ranked, Bytes bytes, Bytes* room, int64_t* num_looked) const;
  void find_locked();

  const PolicyOptions& options_;
  const Graph& graph_;
  const Space& space_;
  Scores& scores_;
  const CopyCost& copy_cost_;
  const Host& host_;
  const Foresight& foresight_;
  Journal& journal_;
  const std::unique_ptr<const Policy> policy_;
  RecentRunnersUp runners_up_;
  SearchMemory memory_;
};

}  // namespace coop
