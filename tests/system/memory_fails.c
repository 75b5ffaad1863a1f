/* Preloaded into a daemon: once the file of the variable MEMORY_FAILS exists, what the daemon
 * mapped last of a worker's slots fails under who reads it, as a damaged page does. The mapping is
 * replaced by one of an empty file, so that the kernel raises SIGBUS there. */
#define _GNU_SOURCE /* memfd_create, RTLD_NEXT */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void* last_mapping;
static size_t last_bytes;

static void* call_mmap(void* place, size_t bytes, int protection, int flags, int file, off_t at) {
  union {
    void* found;
    void* (*call)(void*, size_t, int, int, int, off_t);
  } real = {dlsym(RTLD_NEXT, "mmap")};
  return real.call(place, bytes, protection, flags, file, at);
}

void* mmap(void* place, size_t bytes, int protection, int flags, int file, off_t at) {
  char link[64], name[64] = "";
  void* const mapping = call_mmap(place, bytes, protection, flags, file, at);
  if (file < 0 || protection != PROT_READ) return mapping;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  if (readlink(link, name, sizeof name - 1) > 0 && strncmp(name, "/memfd:sluice-slots", 19) == 0) {
    last_bytes = bytes;
    last_mapping = mapping;
  }
  return mapping;
}

static void* watch(void* path) {
  while (access(path, F_OK) != 0) usleep(10000);
  call_mmap(last_mapping, last_bytes, PROT_READ, MAP_SHARED | MAP_FIXED, memfd_create("none", 0),
            0);
  return NULL;
}

__attribute__((constructor)) static void start(void) {
  pthread_t thread;
  char* const path = getenv("MEMORY_FAILS");
  if (path != NULL) pthread_create(&thread, NULL, watch, path);
}
