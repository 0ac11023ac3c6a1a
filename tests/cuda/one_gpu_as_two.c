// Loaded before the CUDA runtime (LD_PRELOAD), it shows one GPU as two: device 1 is device 0 under
// another name. What a program keeps per device it keeps twice; only the hardware is shared. With
// NO_PEERS in the environment, neither reads the other's memory itself.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef int Error;  // of both APIs; 0: none
enum { kInvalidDevice = 101 };

static __thread int current_device = 0;

typedef void* (*LookUp)(void*, const char*);
static LookUp look_up(void) {
  static LookUp found = 0;
  // The name is ours, below.
  if (found == 0) found = (LookUp)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
  if (found == 0) found = (LookUp)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  return found;
}

// Declares `next`: the function of that name which this one stands in front of.
#define NEXT(name)                  \
  static __typeof__(&name) next = 0; \
  if (next == 0) next = (__typeof__(&name))look_up()(RTLD_NEXT, #name)

static int is_known(int device) { return device == 0 || device == 1; }

Error cudaGetDeviceCount(int* count) {
  NEXT(cudaGetDeviceCount);
  const Error error = next(count);
  if (error == 0) *count = 2;
  return error;
}

Error cudaSetDevice(int device) {
  NEXT(cudaSetDevice);
  if (!is_known(device)) return kInvalidDevice;
  current_device = device;
  return next(0);
}

Error cudaGetDevice(int* device) {
  NEXT(cudaGetDevice);
  const Error error = next(device);
  if (error == 0) *device = current_device;
  return error;
}

Error cudaGetDeviceProperties(void* properties, int device) {
  NEXT(cudaGetDeviceProperties);
  return is_known(device) ? next(properties, 0) : kInvalidDevice;
}

Error cudaGetDeviceProperties_v2(void* properties, int device) {
  NEXT(cudaGetDeviceProperties_v2);
  return is_known(device) ? next(properties, 0) : kInvalidDevice;
}

Error cudaDeviceGetAttribute(int* value, int attribute, int device) {
  NEXT(cudaDeviceGetAttribute);
  return is_known(device) ? next(value, attribute, 0) : kInvalidDevice;
}

Error cudaDeviceGetPCIBusId(char* id, int size, int device) {
  NEXT(cudaDeviceGetPCIBusId);
  return is_known(device) ? next(id, size, 0) : kInvalidDevice;
}

Error cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer && getenv("NO_PEERS") == 0;
  return is_known(device) && is_known(peer) ? 0 : kInvalidDevice;
}

Error cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  (void)flags;
  return is_known(peer) ? 0 : kInvalidDevice;
}

Error cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                          unsigned long bytes, void* stream) {
  NEXT(cudaMemcpyPeerAsync);
  const int known = is_known(to_device) && is_known(from_device);
  return known ? next(to, 0, from, 0, bytes, stream) : kInvalidDevice;
}

static Error (*next_has_context)(int, unsigned*, int*) = 0;

static Error has_context(int device, unsigned* flags, int* active) {
  return is_known(device) ? next_has_context(0, flags, active) : kInvalidDevice;
}

// Torch asks the driver's library itself.
void* dlsym(void* handle, const char* name) {
  void* found = look_up()(handle, name);
  if (strcmp(name, "cuDevicePrimaryCtxGetState") != 0 || found == 0) return found;
  next_has_context = (Error(*)(int, unsigned*, int*))found;
  return (void*)&has_context;
}
