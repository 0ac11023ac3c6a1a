#include "core/foresight/layout.h"

#include <algorithm>
#include <tuple>
#include <unordered_set>
#include <utility>

namespace coop {

namespace {

// A block that is to be moved, or not, by its distance from the end of the
// arena that it is moved towards.
struct Piece {
  Bytes begin;
  Bytes end;
  size_t held;
  bool movable;

  Bytes bytes() const { return end - begin; }
};

// Once the step has ended, and the next one is `step`.
bool may_be_moved(const Value* value, int64_t step) {
  const Storage* storage = value->storage;
  return (value->optimizer_step + 1 == step || value->gradient) && value->is_lasting_root() &&
         value->locks == 0 && value->external == nullptr && storage != nullptr &&
         storage->keeps == 0 && !storage->exposed;
}

// Each in turn, the nearest first, to the nearest room. Calls moved(piece,
// begin) for those that do not stay.
template <typename F>
void move_together(const std::vector<Piece>& pieces, F&& moved) {
  struct Gap {
    Bytes begin;
    Bytes end;
  };
  std::vector<Gap> gaps;
  auto add_gap = [&](Bytes begin, Bytes end) {
    if (!gaps.empty() && gaps.back().end == begin) {
      gaps.back().end = end;
    } else if (begin < end) {
      gaps.push_back({begin, end});
    }
  };
  Bytes top = 0;  // of what was looked at
  for (const Piece& piece : pieces) {
    if (piece.begin > top) add_gap(top, piece.begin);
    top = piece.end;
    if (!piece.movable) continue;
    const auto gap = std::find_if(gaps.begin(), gaps.end(),
                                  [&](const Gap& g) { return g.end - g.begin >= piece.bytes(); });
    if (gap != gaps.end()) {
      const Bytes begin = gap->begin;
      gap->begin += piece.bytes();
      add_gap(piece.begin, piece.end);
      moved(piece, begin);
      continue;
    }
    // It may overlap with where it was: that is done in pieces as long as the way.
    if (gaps.empty() || gaps.back().end != piece.begin) continue;
    const Bytes begin = gaps.back().begin;
    if (begin == piece.begin || !is_worth_moving(piece.bytes(), piece.begin - begin)) continue;
    gaps.back() = {begin + piece.bytes(), piece.end};
    moved(piece, begin);
  }
}

}  // namespace

StepProgram::Death take_death(std::vector<StepProgram::Death>& deaths, Bytes bytes) {
  const auto found = std::find_if(deaths.begin(), deaths.end(),
                                  [&](const StepProgram::Death& d) { return d.bytes == bytes; });
  if (found == deaths.end()) return {StepProgram::kNever, StepProgram::kNever, 0};
  const StepProgram::Death death = *found;
  deaths.erase(found);
  return death;
}

namespace {

// What is in memory, and what it is.
struct Held {
  Obstacle obstacle;
  bool movable;

  bool is_passing() const { return obstacle.death.op != StepProgram::kNever; }
};

struct Room {
  Bytes begin;
  Bytes end;
};

Room largest_room(const std::vector<Held>& held, Bytes arena_end) {
  std::vector<Room> taken;
  for (const Held& next : held) taken.push_back({next.obstacle.begin, next.obstacle.end});
  std::sort(taken.begin(), taken.end(),
            [](const Room& a, const Room& b) { return a.begin < b.begin; });
  Room largest{0, 0};
  Bytes begin = 0;
  auto add = [&](Bytes end) {
    if (end - begin > largest.end - largest.begin) largest = {begin, end};
  };
  for (const Room& next : taken) {
    add(next.begin);
    begin = next.end;
  }
  add(arena_end);
  return largest;
}

class Arranger {
 public:
  Arranger(std::vector<Held> held, Bytes arena_end)
      : held_(std::move(held)), arena_end_(arena_end) {
    for (size_t i = 0; i < held_.size(); ++i) {
      if (held_[i].movable && held_[i].is_passing()) passing_.push_back(i);
    }
    auto rank = [&](size_t i) {
      const Obstacle& o = held_[i].obstacle;
      return std::tuple(o.death.op, o.death.freed, o.begin - o.end);
    };
    std::stable_sort(passing_.begin(), passing_.end(),
                     [&](size_t a, size_t b) { return rank(a) < rank(b); });
  }

  std::vector<Relocation> run() {
    // The more was moved aside, the more room there is in the middle.
    for (bool again = true; again;) {
      middle_ = largest_room(held_, arena_end_);
      again = gather_passing() && !passing_.empty();
      move_aside();
    }
    return std::move(moves_);
  }
  const std::vector<Held>& held() const { return held_; }

 private:
  void move(size_t i, Bytes to) {
    Obstacle& o = held_[i].obstacle;
    moves_.push_back({o.begin, to});
    o = {to, to + o.end - o.begin, o.death};
  }

  // What dies soon (gradients) would leave holes between what stays. It waits in the middle, in an
  // order that is the same after every step. False: nothing more has room there.
  bool gather_passing() {
    const size_t before = passing_.size();
    std::erase_if(passing_, [&](size_t i) {
      const Bytes bytes = held_[i].obstacle.end - held_[i].obstacle.begin;
      if (bytes > middle_.end - middle_.begin) return false;
      middle_.end -= bytes;
      move(i, middle_.end);
      return true;
    });
    return passing_.size() < before;
  }

  // What stays, away from the middle.
  void move_aside() {
    std::vector<Piece> left;
    std::vector<Piece> right;
    for (size_t i = 0; i < held_.size(); ++i) {
      const Obstacle& o = held_[i].obstacle;
      const bool movable = held_[i].movable && !held_[i].is_passing();
      if (o.begin < middle_.begin) {
        left.push_back({o.begin, o.end, i, movable});
      } else {
        right.push_back({arena_end_ - o.end, arena_end_ - o.begin, i, movable});
      }
    }
    auto is_nearer = [](const Piece& a, const Piece& b) { return a.begin < b.begin; };
    std::sort(left.begin(), left.end(), is_nearer);
    std::sort(right.begin(), right.end(), is_nearer);
    move_together(left, [&](const Piece& piece, Bytes to) { move(piece.held, to); });
    move_together(right, [&](const Piece& piece, Bytes to) {
      move(piece.held, arena_end_ - to - piece.bytes());
    });
  }

  std::vector<Held> held_;
  const Bytes arena_end_;
  std::vector<size_t> passing_;  // that were not moved yet
  Room middle_{};
  std::vector<Relocation> moves_;
};

}  // namespace

Layout find_layout(const StepProgram& program, const std::vector<KnownRoot>& roots,
                   const Space& space, int64_t step, bool may_move) {
  std::vector<StepProgram::Death> deaths = program.older_deaths;
  std::vector<Held> held;
  std::unordered_set<int64_t> serials;
  for (const KnownRoot& root : roots) serials.insert(root.serial);
  space.for_each_block([&](const Block& block) {
    if (block.is_free() || serials.contains(block.value->serial)) return;
    StepProgram::Death death{StepProgram::kNever, StepProgram::kNever, 0};
    if (block.value->step + 1 == step) death = take_death(deaths, block.bytes);
    held.push_back({{block.offset, block.offset + block.bytes, death},
                    may_move && may_be_moved(block.value, step)});
  });
  Layout layout;
  Arranger arranger(std::move(held), space.arena().end());
  layout.moves = arranger.run();
  for (const Held& next : arranger.held()) {
    if (!is_at_once(next.obstacle.death)) layout.obstacles.push_back(next.obstacle);
  }
  std::sort(layout.obstacles.begin(), layout.obstacles.end(),
            [](const Obstacle& a, const Obstacle& b) { return a.begin < b.begin; });
  return layout;
}

}  // namespace coop
