// The worked examples of docs/extending.md: a policy, a way back and a device of one's own, on the
// core alone. tests/core/test_extending.py builds and runs it.
#include <cstring>
#include <memory>
#include <vector>

#include "core/core.h"
#include "input.h"

namespace {

using coop::Bytes;
using coop::Storage;

constexpr Bytes kBlock = 64;

// A device: main memory.
class VectorDevice final : public coop::Host {
 public:
  explicit VectorDevice(Bytes bytes) : memory_(static_cast<size_t>(bytes)) {}

  void release(Storage&) override {}  // nobody has its address
  void restore(Storage&) override {}
  void copy(coop::Value& to, const coop::Value& from, Bytes bytes) override {
    std::memcpy(at(to.offset), at(from.offset), static_cast<size_t>(bytes));
  }
  void move(coop::Value& value, Bytes from) override {
    std::memmove(at(value.offset), at(from), static_cast<size_t>(value.bytes));
  }

  unsigned char* at(Bytes offset) { return memory_.data() + offset; }

 private:
  std::vector<unsigned char> memory_;
};

// A way back: what is filled with one byte is filled again.
struct Filled final : coop::Recipe {
  explicit Filled(unsigned char byte) : byte(byte) {}

  void replay(coop::Host& host, Storage** made) override {
    made[0] = outputs[0]->storage->core->allocate(outputs[0]->bytes, coop::Side::kLeft);
    fill(host, *made[0]);
  }
  void fill(coop::Host& host, const Storage& storage) const {
    std::memset(static_cast<VectorDevice&>(host).at(storage.value->offset), byte,
                static_cast<size_t>(storage.value->bytes));
  }

  const unsigned char byte;
};

// A policy: one value after the other, the one that was used longest ago.
class LeastRecentlyUsed final : public coop::Policy {
 public:
  coop::Plan choose(const coop::Situation& now, coop::SearchMemory&) const override {
    coop::Plan plan;
    double oldest = now.clock + 1;
    const coop::SearchCosts costs(now.blocks, now.clock, now.locked);
    costs.for_each([&](const coop::Block& block) {
      if (block.is_free() || block.cost == coop::kBarrier || block.last_access >= oldest) return;
      oldest = block.last_access;
      plan.window = {block.offset, block.offset + block.bytes, 0};
      plan.evict = {block.value};
    });
    return plan;
  }
};

class Program {
 public:
  Program(Bytes blocks, std::unique_ptr<const coop::Policy> policy)
      : device_(blocks * kBlock), core_(config(blocks), &device_, std::move(policy)) {}
  ~Program() {
    for (Storage* storage : storages_) core_.storage_died(storage);
  }

  // An operator that makes a block of one byte's copies.
  Storage* fill(unsigned char byte, double cost) {
    auto recipe = std::make_unique<Filled>(byte);
    coop::Operation operation;
    core_.begin(operation, nullptr, 0);
    Storage* made = core_.allocate(kBlock, coop::Side::kRight);
    recipe->fill(device_, *made);
    core_.commit(operation, recipe.release(), nullptr, 0, &made, 1, cost);
    storages_.push_back(made);
    return made;
  }
  // An operator that reads it.
  unsigned char read(Storage* storage) {
    coop::Operation operation;
    core_.begin(operation, &storage, 1);
    const unsigned char byte = *device_.at(storage->value->offset);
    core_.commit(operation, nullptr, nullptr, 0, nullptr, 0, 1);
    return byte;
  }
  coop::Core& core() { return core_; }

 private:
  static coop::Config config(Bytes blocks) {
    coop::Config config;
    config.budget = blocks * kBlock;
    config.small_bytes = 0;
    return config;
  }

  VectorDevice device_;
  coop::Core core_;
  std::vector<Storage*> storages_;
};

bool is_resident(const Storage* storage) { return storage->value->is_resident(); }

void the_policy_decides_what_leaves() {
  for (const bool own : {false, true}) {
    Program program(2, own ? std::make_unique<LeastRecentlyUsed>() : nullptr);
    Storage* expensive = program.fill(1, /*cost=*/1e6);
    Storage* cheap = program.fill(2, /*cost=*/1);
    EXPECT(program.read(cheap) == 2);
    program.fill(3, 1);
    // Coop gives up what is cheap, the other one what was used first.
    EXPECT(is_resident(expensive) == !own && is_resident(cheap) == own);
    EXPECT(program.core().stats().num_evictions == 1);
  }
}

void what_left_comes_back_by_its_recipe() {
  Program program(2, std::make_unique<LeastRecentlyUsed>());
  Storage* first = program.fill(1, 1);
  Storage* second = program.fill(2, 1);
  Storage* third = program.fill(3, 1);
  EXPECT(!is_resident(first));
  EXPECT(program.read(first) == 1);
  EXPECT(program.read(second) == 2);
  EXPECT(program.read(third) == 3);
  EXPECT(program.core().stats().num_replays == 3 && program.core().is_valid());
}

void an_operation_that_is_left_by_a_throw_unlocks() {
  Program program(2, nullptr);
  Storage* value = program.fill(1, 1);
  try {
    coop::Operation operation;
    program.core().begin(operation, &value, 1);
    EXPECT(value->value->locks == 1 && !program.core().evict(value));
    throw 0;
  } catch (int) {
    EXPECT(value->value->locks == 0);
  }
  EXPECT(program.core().evict(value));
}

}  // namespace

int main() {
  the_policy_decides_what_leaves();
  what_left_comes_back_by_its_recipe();
  an_operation_that_is_left_by_a_throw_unlocks();
  return 0;
}
