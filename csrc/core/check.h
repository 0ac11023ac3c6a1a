// Invariant checks: on in the debug build (-DCOOP_DEBUG=1), compiled out otherwise.
#pragma once

#include <cstdio>
#include <cstdlib>

#if defined(COOP_DEBUG) && COOP_DEBUG
#define COOP_DEBUG_ONLY(...) __VA_ARGS__
#else
#define COOP_DEBUG_ONLY(...)
#endif

// Always on: a broken invariant that would corrupt memory. Cheap comparisons only.
#define COOP_ASSERT(condition)                                                          \
  do {                                                                                  \
    if (__builtin_expect(!(condition), 0)) {                                            \
      std::fprintf(stderr, "coop: broken invariant at %s:%d: %s\n", __FILE__, __LINE__, \
                   #condition);                                                         \
      std::abort();                                                                     \
    }                                                                                   \
  } while (0)

#define COOP_DEBUG_ASSERT(condition) COOP_DEBUG_ONLY(COOP_ASSERT(condition))
