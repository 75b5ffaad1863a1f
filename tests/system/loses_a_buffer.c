/* Preloaded into a process, it makes each of its buffer pools seem to lack one buffer. */
#include <dlfcn.h>
#include <stddef.h>

struct rte_mempool;
unsigned rte_mempool_avail_count(const struct rte_mempool* pool);

unsigned rte_mempool_avail_count(const struct rte_mempool* pool) {
  union {
    void* found;
    unsigned (*call)(const struct rte_mempool*);
  } real = {dlsym((void*)-1L, "rte_mempool_avail_count")}; /* RTLD_NEXT */
  return real.call(pool) - 1;
}
