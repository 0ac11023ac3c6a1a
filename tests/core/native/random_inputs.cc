// Feeds a fuzz driver with random bytes where there is no libFuzzer: PROGRAM SEED COUNT.
#include <cstdlib>
#include <random>
#include <vector>

#include "input.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s SEED COUNT\n", argv[0]);
    return 2;
  }
  std::mt19937_64 random(std::strtoull(argv[1], nullptr, 10));
  const long count = std::strtol(argv[2], nullptr, 10);
  size_t num_bytes = 0;
  for (long i = 0; i < count; ++i) {
    std::vector<uint8_t> bytes(random() % 2048);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    num_bytes += bytes.size();
  }
  std::printf("%s: %ld sequences, %zu bytes\n", argv[0], count, num_bytes);
  return 0;
}
