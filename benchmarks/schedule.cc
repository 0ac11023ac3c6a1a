// How long it takes to make a schedule, by the number of operators: `make bench-schedule`. Steps
// are like a transformer's: layers of a residual stream, and their backward pass.
#include <atomic>
#include <cstdio>
#include <ctime>
#include <vector>

#include "core/foresight/foresight.h"
#include "core/foresight/schedule_maker.h"
#include "core/foresight/scheduler.h"
#include "core/foresight/timeline.h"

namespace {

using namespace coop;

constexpr Bytes kMiB = 1 << 20;

// One result an operator.
class Builder {
 public:
  int32_t add(Cost cost, Bytes bytes, const std::vector<int32_t>& reads, bool in_backward) {
    StepProgram::Operator op;
    op.cost = cost;
    op.first_use = static_cast<int32_t>(program_.uses.size());
    op.first_source = static_cast<int32_t>(program_.sources.size());
    op.first_item = program_.num_items();
    for (const int32_t item : reads) {
      program_.uses.push_back(item);
      program_.sources.push_back(item);
      program_.items[item].end = program_.size() + 1;
      program_.items[item].freed = program_.num_items() + 1;
    }
    StepProgram::Item& item = program_.items.emplace_back();
    item.bytes = bytes;
    item.born = item.maker = program_.size();
    item.end = program_.size() + 1;
    item.freed = program_.num_items();
    item.in_backward = in_backward;
    program_.operators.push_back(op);
    return op.first_item;
  }
  StepProgram take() { return std::move(program_); }

 private:
  StepProgram program_;
};

StepProgram transformer(int num_layers) {
  struct Saved {
    int32_t input;
    int32_t output;
    Cost cost;
    Bytes bytes;
  };
  Builder builder;
  std::vector<Saved> tape;
  auto forward = [&](Cost cost, Bytes bytes, std::vector<int32_t> reads) {
    const int32_t made = builder.add(cost, bytes, reads, /*in_backward=*/false);
    tape.push_back({reads[0], made, cost, bytes});
    return made;
  };
  int32_t x = builder.add(1, 4 * kMiB, {}, /*in_backward=*/false);
  for (int layer = 0; layer < num_layers; ++layer) {
    int32_t h = forward(20, 8 * kMiB, {x});         // norm
    const int32_t q = forward(200, 4 * kMiB, {h});  // projections
    const int32_t k = forward(200, 4 * kMiB, {h});
    const int32_t v = forward(200, 4 * kMiB, {h});
    h = forward(300, 4 * kMiB, {q, k, v});                        // attention
    x = forward(10, 4 * kMiB, {forward(200, 4 * kMiB, {h}), x});  // and sum
    h = forward(20, 8 * kMiB, {x});
    const int32_t gate = forward(600, 12 * kMiB, {h});
    const int32_t up = forward(600, 12 * kMiB, {h});
    h = forward(30, 12 * kMiB, {forward(30, 12 * kMiB, {gate}), up});
    x = forward(10, 4 * kMiB, {forward(600, 4 * kMiB, {h}), x});
  }
  int32_t gradient = builder.add(1, 4 * kMiB, {x}, /*in_backward=*/true);
  for (auto saved = tape.rbegin(); saved != tape.rend(); ++saved) {
    gradient =
        builder.add(saved->cost, saved->bytes, {gradient, saved->input, saved->output}, true);
    builder.add(saved->cost, kMiB, {gradient, saved->input}, true);
  }
  return builder.take();
}

Bytes peak_of(const StepProgram& program) {
  const Preferences preferences;
  return Timeline(program, Scheduler(program, preferences).needs()).peak();
}

}  // namespace

int main() {
  std::printf("| operators | budget | looks | extra compute | CPU seconds |\n");
  std::printf("| --- | --- | --- | --- | --- |\n");
  for (const int num_layers : {23, 256, 2564}) {
    const StepProgram program = transformer(num_layers);
    const Bytes peak = peak_of(program);
    for (const double share : {0.7, 0.4}) {
      for (const int64_t looks : {Foresight::kFirstLooks, Foresight::kMoreLooks}) {
        const auto budget = static_cast<Bytes>(share * static_cast<double>(peak));
        ScheduleTask task;
        task.program = program;
        task.budget = budget;
        task.most_cost = program.cost();
        task.most_looks = looks;
        const std::atomic<bool> stop{false};
        const std::clock_t begin = std::clock();
        const MadeSchedule made = make_schedule(task, stop);
        const auto took = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
        std::printf("| %d | %.0f%% | %lld million | ", program.size(), 100 * share,
                    static_cast<long long>(looks / 1'000'000));
        if (made.schedule.empty()) {
          std::printf("no schedule");
        } else {
          std::printf("%.1f%%", 100 * made.schedule.replay_cost / program.cost());
        }
        std::printf(" | %.2f |\n", took);
        std::fflush(stdout);
      }
    }
  }
}
