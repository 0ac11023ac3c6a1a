#include "core/foresight/placer.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace coop {

namespace {

struct Rectangle {
  enum class Kind : uint8_t { kLasting, kOther, kPassing };

  Bytes bytes = 0;
  int32_t begin = 0;  // moments: two for each operator, before it and while it runs
  int32_t end = 0;
  int32_t first = -1;  // of temporaries of one operator: items that were there at the same time
  int32_t last = -1;
  Bytes address = -1;
  Kind kind = Kind::kOther;

  bool meets(const Rectangle& other) const {
    if (begin >= other.end || other.begin >= end) return false;
    if (first >= 0 && other.first >= 0) return first < other.last && other.first < last;
    return true;
  }
};

// A value that outlives its step lives on until its successor is made, which is about when its
// predecessor died: one of the same size.
int32_t take_death(std::vector<StepProgram::Death>& deaths, Bytes bytes) {
  const auto death = std::find_if(deaths.begin(), deaths.end(),
                                  [&](const StepProgram::Death& d) { return d.bytes == bytes; });
  if (death == deaths.end()) return StepProgram::kNever;
  const int32_t op = death->op;
  deaths.erase(death);
  return op;
}

}  // namespace

std::vector<Obstacle> find_obstacles(const StepProgram& program, const Space& space, int64_t step) {
  std::vector<StepProgram::Death> deaths = program.older_deaths;
  std::vector<Obstacle> obstacles;
  space.for_each_block([&](const Block& block) {
    if (block.is_free()) return;
    int32_t until = StepProgram::kNever;
    if (block.value->step + 1 == step) until = take_death(deaths, block.bytes);
    if (until == 0) return;
    obstacles.push_back({block.offset, block.offset + block.bytes,
                         until == StepProgram::kNever ? until : 2 * until});
  });
  return obstacles;
}

int64_t place_stays(const StepProgram& program, const std::vector<Obstacle>& obstacles,
                    Bytes arena_end, Schedule& schedule) {
  const int32_t size = program.size();
  std::vector<StepProgram::Death> deaths = program.older_deaths;
  std::vector<int32_t> others(schedule.stays.size(), -1);
  std::vector<Rectangle> rectangles;
  std::vector<int32_t> rectangle_of(schedule.stays.size(), -1);
  for (size_t i = 0; i < program.items.size(); ++i) {
    const StepProgram::Item& item = program.items[i];
    if (item.bytes == 0) continue;
    for (int32_t s = schedule.first_stay[i]; s < schedule.first_stay[i + 1]; ++s) {
      const Schedule::Stay& stay = schedule.stays[s];
      const bool is_first = s == schedule.first_stay[i];
      Rectangle next;
      next.bytes = item.bytes;
      next.begin = is_first ? 2 * item.born + 1 : 2 * stay.begin;
      next.end = 2 * std::min(stay.end, size) + (stay.passing ? 1 : 2);
      if (stay.passing) next.kind = Rectangle::Kind::kPassing;
      // From then on it is a root, or the program keeps it to its end.
      const bool is_last = s + 1 == schedule.first_stay[i + 1];
      if (is_last && item.end == StepProgram::kNever) next.kind = Rectangle::Kind::kLasting;
      if (is_last && item.fixed != StepProgram::kNever) next.end = 2 * std::min(item.end, size) + 1;
      if (item.maker < 0 && item.born == item.end) {
        next.first = static_cast<int32_t>(i);
        next.last = item.freed;
      }
      if (is_first && item.takes >= 0) {
        int32_t taken = -1;
        for (int32_t o = schedule.first_stay[item.takes]; o < schedule.first_stay[item.takes + 1];
             ++o) {
          if (schedule.stays[o].begin <= item.born && item.born <= schedule.stays[o].end) taken = o;
        }
        if (taken >= 0 && rectangle_of[taken] >= 0) {
          rectangle_of[s] = rectangle_of[taken];
          Rectangle& whole = rectangles[rectangle_of[s]];
          whole.end = std::max(whole.end, next.end);
          continue;
        }
      }
      rectangle_of[s] = static_cast<int32_t>(rectangles.size());
      rectangles.push_back(next);
      if (!is_last || item.end != StepProgram::kNever) continue;
      // It is still there when its successor is made.
      const int32_t death = take_death(deaths, item.bytes);
      if (death == StepProgram::kNever || death <= item.born) continue;
      next.begin = 0;
      next.end = 2 * size;
      others[s] = static_cast<int32_t>(rectangles.size());
      rectangles.push_back(next);
    }
  }
  std::vector<int32_t> order(rectangles.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const Rectangle &x = rectangles[a], &y = rectangles[b];
    // What stays for good lies at the end; what passes need not have a place.
    if (x.kind != y.kind) return x.kind < y.kind;
    return x.bytes != y.bytes ? x.bytes > y.bytes : x.end - x.begin > y.end - y.begin;
  });
  std::vector<Rectangle> placed;  // in order of addresses
  for (const Obstacle& obstacle : obstacles) {
    Rectangle& taken = placed.emplace_back();
    taken.bytes = obstacle.end - obstacle.begin;
    taken.end = obstacle.until;
    taken.address = obstacle.begin;
  }
  std::sort(placed.begin(), placed.end(),
            [](const Rectangle& a, const Rectangle& b) { return a.address < b.address; });
  int64_t num_left = 0;
  for (const int32_t index : order) {
    Rectangle& next = rectangles[index];
    Bytes top = 0;
    Bytes best = -1;
    Bytes best_room = std::numeric_limits<Bytes>::max();
    auto consider = [&](Bytes end) {
      const Bytes room = end - top;
      const bool lowest = next.kind == Rectangle::Kind::kLasting && best >= 0;
      if (room >= next.bytes && room < best_room && !lowest) {
        best = top;
        best_room = room;
      }
    };
    for (const Rectangle& other : placed) {
      if (!other.meets(next)) continue;
      consider(other.address);
      top = std::max(top, other.address + other.bytes);
    }
    consider(arena_end);
    if (best < 0) {
      num_left += next.kind != Rectangle::Kind::kPassing;
      continue;
    }
    next.address = best;
    placed.insert(std::upper_bound(
                      placed.begin(), placed.end(), next,
                      [](const Rectangle& a, const Rectangle& b) { return a.address < b.address; }),
                  next);
  }
  schedule.has_places = true;
  for (size_t s = 0; s < schedule.stays.size(); ++s) {
    if (rectangle_of[s] >= 0) schedule.stays[s].address = rectangles[rectangle_of[s]].address;
    if (others[s] >= 0) schedule.stays[s].other_address = rectangles[others[s]].address;
  }
  return num_left;
}

}  // namespace coop
