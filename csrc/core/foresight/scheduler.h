// Chooses what of a step program is recomputed. It begins with everything kept from its first use
// to its last. At the operator that needs the most memory it gives up what costs least for each
// byte, until everything fits. What is recomputed needs what it is made from at that time: those
// needs are uses like the program's own. A dead value may be kept for them, where that is cheaper
// than to recompute it.
//
// A copy is another price of the same gap: what is waited for it, and a share of the link's time,
// since what is taken for one is not there for the next.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/foresight/link_time.h"
#include "core/foresight/needs.h"
#include "core/foresight/preferences.h"
#include "core/foresight/profile.h"
#include "core/foresight/step_program.h"
#include "core/foresight/timeline.h"
#include "core/policy/link.h"

namespace coop {

// Copies in main memory: how much there is of it, and the way there.
struct CopyRoom {
  Bytes bytes = 0;  // 0: nothing is copied
  LinkProfile link;
};

class Scheduler {
 public:
  // All of it outlives the scheduler.
  Scheduler(const StepProgram& program, const Preferences& preferences,
            const CopyRoom& copy_room = {});

  // Gives up what it must until about everything fits. False: it does not.
  bool fit(Bytes room);
  // What it has looked at so far: a measure of time that is the same in every run.
  int64_t num_looks() const { return num_looks_; }
  const std::vector<Needs>& needs() const { return needs_; }
  // What the needs mean exactly. While it gives up, it only estimates that.
  void update(const Timeline& timeline);
  // Keeps what there is room for after all, the most expensive first. False: nothing.
  bool keep_what_fits(const Timeline& timeline, Bytes room);

 private:
  // A need that is not to be kept any more.
  struct Gap {
    double price;
    int32_t item;
    int32_t time;
    int32_t instead;      // an ancestor that is kept; -1: none
    bool copied = false;  // it comes back by its copy
  };
  // What a copy would take: waiting, and the half operators in which it is gone.
  struct Away {
    Cost waited;
    Cost link;
    int32_t gone_begin;
    int32_t gone_end;
  };

  bool is_there(int32_t item, int32_t time) const;
  bool is_near(int32_t item, int32_t time) const;
  bool can_bridge(int32_t item, int32_t from, int32_t to) const;
  bool can_stay(int32_t item, int32_t from, int32_t to) const;
  static bool is_later(const Gap& a, const Gap& b);
  bool find_gaps(int32_t op, std::vector<Gap>& gaps);
  bool set_price(Gap& gap, int32_t op);
  bool set_recompute_price(Gap& gap, int32_t op);
  bool has_copies() const { return copy_room_.bytes > 0; }
  // A gap in which an operator runs: the needs before and after it. A root's last gap goes on in
  // the next step, whose operators go on counting.
  struct Window {
    size_t need;  // that ends it
    int32_t before;
    int32_t op;
    int32_t after;
  };
  std::optional<Window> find_window(int32_t item, int32_t op) const;
  bool can_copy(int32_t item, const Window& window) const;
  bool is_dirty(int32_t item, size_t need) const;
  bool has_copied_need(int32_t item) const;
  Away find_away(int32_t item, const Window& window);
  Away find_longer_away(const Need& need, int32_t op) const;
  Cost start(int32_t half) const;
  void add_bytes(int32_t begin, int32_t end, Bytes bytes);
  void send_away(const Gap& gap, int32_t op);
  void require_root(int32_t item, int32_t time);
  void bring_back_between(int32_t item, const Window& window);
  bool is_on_host(int32_t item, int32_t time) const;
  void update_link(const Timeline& timeline);
  bool is_replayed(int32_t maker, int32_t time) const;
  template <typename F>
  void for_each_sibling(const Gap& gap, int32_t op, F&& f) const;
  double weight(int32_t item) const {
    return preferences_.weights.empty() ? 1 : preferences_.weights[item];
  }
  Cost closure_cost(int32_t item, int32_t time, int32_t kept, bool collect);
  void give_up(const Gap& gap, int32_t op);
  void make_again(int32_t item, int32_t time, int32_t kept);
  void require(int32_t item, int32_t time, bool keep);
  void end_passing(int32_t item, size_t need);
  void set_passing(int32_t time, Bytes bytes);

  const StepProgram& program_;
  const Preferences& preferences_;
  const CopyRoom copy_room_;
  const Link link_;
  Bytes room_ = 0;
  const int32_t near_;
  const int32_t most_peaks_;
  Profile profile_;
  std::vector<Needs> needs_;        // by item
  std::vector<Bytes> passing_;      // by operator: the most that a replay for it needs
  std::vector<int32_t> ancestors_;  // of the last closure, the nearest ones
  std::vector<int32_t> queue_;
  std::vector<int64_t> op_mark_;
  int64_t round_ = 0;
  int32_t lowered_ = -1;  // the moment that is made to fit
  bool is_first_ = true;  // nothing was given up yet
  int64_t num_looks_ = 0;
  // By half operator.
  LinkTime out_time_;
  LinkTime in_time_;
  std::vector<Cost> starts_;  // when they begin, but for what is waited
  Bytes saved_bytes_ = 0;
  std::vector<std::vector<int32_t>> root_writes_;  // by root: operators
};

}  // namespace coop
