#include "adapter/call/saved_content.h"

#include <cmath>
#include <new>
#include <string>

#include "adapter/call/attend.h"
#include "adapter/call/running.h"
#include "adapter/engine.h"

namespace coop {

SavedContent::SavedContent(const Value& value) {
  constexpr double kBytesPerNs = 10;  // there and back again, about
  cost = std::ceil(2 * static_cast<double>(value.bytes) / kBytesPerNs);
  origin = {-1, 0};
}

// To memory of the system's, of which copies are done, or the bytes taken, when they return.
void SavedContent::save(Host& host, const Value& value) {
  Engine& engine = TorchHost::engine_of(host);
  try {
    saved = std::make_unique_for_overwrite<std::byte[]>(value.bytes);
  } catch (const std::bad_alloc&) {
    TORCH_CHECK(false, "coop: main memory has no room for " + std::to_string(value.bytes) +
                           " bytes that have to leave the arena and were not recorded, since the "
                           "last steps fitted: quiet_after=0 records every step");
  }
  const Storages& storages = engine.storages();
  engine.memory().copy(saved.get(), storages.address(value), value.bytes - storages.header_bytes());
}

void SavedContent::replay(Host& host, Storage** made) {
  Engine& engine = TorchHost::engine_of(host);
  attend(engine);
  const RunScope scope(running(), Side::kLeft, /*repeatable=*/true, /*replaying=*/true);
  const Bytes bytes = outputs[0]->bytes;
  made[0] = engine.core().allocate(bytes, Side::kLeft);
  const Storages& storages = engine.storages();
  engine.memory().copy(storages.address(*made[0]->value), saved.get(),
                       bytes - storages.header_bytes());
}

}  // namespace coop
