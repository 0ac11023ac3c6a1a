// What a fuzz driver is made of: bytes become choices; a broken promise ends the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

// Always on, and with a stack from the sanitizer.
#define EXPECT(condition)                                                          \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (0)

// The bytes that a fuzzer made up, as numbers; zeros when there are no more.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool empty() const { return position_ >= size_; }
  uint32_t byte() { return empty() ? 0 : data_[position_++]; }
  // 0 to n - 1, for n up to 2^16.
  uint32_t below(uint32_t n) {
    if (n <= 1) return 0;
    const uint32_t low = byte();
    return (n <= 256 ? low : byte() << 8 | low) % n;
  }
  bool flag() { return (byte() & 1) != 0; }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t position_ = 0;
};

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
