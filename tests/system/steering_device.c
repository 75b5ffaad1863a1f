/* Preloaded into a process, it gives the af_packet driver what NICs have: rte_flow. Without rules
 * all frames come to queue 0; a rule of Ethernet, a VLAN or none, IPv4 and UDP to a port brings
 * those to another queue. The kernel does that: a program of ours chooses
 * among the sockets of a port's queues. The variable STEERING_REFUSES names a kind of call,
 * "validate" or "create", of which the second one fails. Each rule is printed on standard error.
 *
 * With the variable STEERING_RSS it accepts no rules, but has RSS: it spreads UDP datagrams over
 * the queues by DPDK's software Toeplitz hash, with a key and a table that can be read. With "key"
 * or "table" that one cannot be read; with "other" it uses another table than it reports; with
 * "changes" it reports another one later. As a NIC, it receives nothing before it can spread. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <rte_byteorder.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include <rte_thash.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define RULES_MAX 8
#define QUEUES_MAX 16

struct rte_flow {
  int vlan; /* -1: frames without a tag */
  int udp_port;
  int queue; /* -1: the rule was removed */
};
static struct rte_flow rules[RULES_MAX];
static int rules_count;
static int queue_sockets[QUEUES_MAX];
static unsigned sockets_count;

static int real_setsockopt(int file, int level, int name, const void* value, socklen_t size) {
  union {
    void* found;
    int (*call)(int, int, int, const void*, socklen_t);
  } real = {dlsym(RTLD_NEXT, "setsockopt")};
  return real.call(file, level, name, value, size);
}

/* Whether STEERING_RSS has this value; NULL: whether it is set. */
static int rss_is(const char* what) {
  const char* const rss = getenv("STEERING_RSS");
  return rss != NULL && (what == NULL || strcmp(rss, what) == 0);
}

static int drop_all(int file) {
  struct sock_filter code = BPF_STMT(BPF_RET | BPF_K, 0);
  const struct sock_fprog program = {1, &code};
  return real_setsockopt(file, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

/* The driver sets its packets' version before it binds a queue's socket. Then it asks the kernel to
 * spread frames by their hash. */
int setsockopt(int file, int level, int name, const void* value, socklen_t size) {
  if (level == SOL_PACKET && name == PACKET_VERSION && sockets_count < QUEUES_MAX) {
    queue_sockets[sockets_count++] = file;
    if (rss_is(NULL) && drop_all(file) != 0) perror("filter");
  }
  if (level != SOL_PACKET || name != PACKET_FANOUT)
    return real_setsockopt(file, level, name, value, size);
  const int group = (*(const int*)value & 0xffff) | PACKET_FANOUT_CBPF << 16;
  return real_setsockopt(file, level, name, &group, sizeof group);
}

/* The program by which the kernel chooses a frame's queue. */
static int choose_by(struct sock_filter* code, unsigned short length) {
  const struct sock_fprog program = {length, code};
  return real_setsockopt(queue_sockets[0], SOL_PACKET, PACKET_FANOUT_DATA, &program,
                         sizeof program);
}

#define ADD(...) code[length++] = (struct sock_filter)__VA_ARGS__

/* Offsets are from the IPv4 header, which has no options. */
static int tell_kernel(void) {
  struct sock_filter code[8 * RULES_MAX + 1];
  unsigned short length = 0;
  for (int i = 0; i < rules_count; ++i) {
    if (rules[i].queue < 0) continue;
    const int has_tag = rules[i].vlan >= 0;
    ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                 (unsigned)(SKF_AD_OFF + (has_tag ? SKF_AD_VLAN_TAG : SKF_AD_VLAN_TAG_PRESENT))));
    ADD(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xfff));
    ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, has_tag ? (unsigned)rules[i].vlan : 0, 0, 5));
    ADD(BPF_STMT(BPF_LD | BPF_B | BPF_ABS, (unsigned)(SKF_NET_OFF + 9)));
    ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 17, 0, 3));
    ADD(BPF_STMT(BPF_LD | BPF_H | BPF_ABS, (unsigned)(SKF_NET_OFF + 22)));
    ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)rules[i].udp_port, 0, 1));
    ADD(BPF_STMT(BPF_RET | BPF_K, (unsigned)rules[i].queue));
  }
  ADD(BPF_STMT(BPF_RET | BPF_K, 0));
  return choose_by(code, length);
}

static int refuses(const char* call, int* calls) {
  const char* const refused = getenv("STEERING_REFUSES");
  return refused != NULL && strcmp(refused, call) == 0 && ++*calls == 2;
}

static int refuse(struct rte_flow_error* error, const char* why) {
  error->message = why;
  return -ENOTSUP;
}

/* Reads the rule. Not zero: this device does not have such rules. */
static int read_rule(const struct rte_flow_attr* attributes, const struct rte_flow_item* item,
                     const struct rte_flow_action* action, struct rte_flow* rule) {
  rule->vlan = -1;
  if (!attributes->ingress || attributes->egress || attributes->transfer) return -1;
  if (item->type != RTE_FLOW_ITEM_TYPE_ETH || item->spec != NULL) return -1;
  if ((++item)->type == RTE_FLOW_ITEM_TYPE_VLAN) {
    const struct rte_flow_item_vlan *tag = item->spec, *mask = item->mask;
    if (mask->hdr.vlan_tci != RTE_BE16(0xfff) || mask->hdr.eth_proto != 0) return -1;
    rule->vlan = rte_be_to_cpu_16(tag->hdr.vlan_tci);
    ++item;
  }
  if (item->type != RTE_FLOW_ITEM_TYPE_IPV4 || item->spec != NULL) return -1;
  if ((++item)->type != RTE_FLOW_ITEM_TYPE_UDP) return -1;
  const struct rte_flow_item_udp *udp = item->spec, *mask = item->mask;
  if (item->last != NULL || mask->hdr.dst_port != 0xffff || mask->hdr.src_port != 0) return -1;
  rule->udp_port = rte_be_to_cpu_16(udp->hdr.dst_port);
  if ((++item)->type != RTE_FLOW_ITEM_TYPE_END) return -1;
  if (action->type != RTE_FLOW_ACTION_TYPE_QUEUE) return -1;
  rule->queue = ((const struct rte_flow_action_queue*)action->conf)->index;
  return (++action)->type == RTE_FLOW_ACTION_TYPE_END ? 0 : -1;
}

int rte_flow_validate(uint16_t port, const struct rte_flow_attr* attributes,
                      const struct rte_flow_item* pattern, const struct rte_flow_action* actions,
                      struct rte_flow_error* error) {
  static int calls;
  struct rte_flow rule;
  (void)port;
  if (rss_is(NULL)) return refuse(error, "no rules at all");
  if (refuses("validate", &calls)) return refuse(error, "not this pattern");
  return read_rule(attributes, pattern, actions, &rule) == 0 ? 0 : refuse(error, "unknown rule");
}

struct rte_flow* rte_flow_create(uint16_t port, const struct rte_flow_attr* attributes,
                                 const struct rte_flow_item* pattern,
                                 const struct rte_flow_action* actions,
                                 struct rte_flow_error* error) {
  static int calls;
  struct rte_flow* const rule = &rules[rules_count];
  (void)port;
  if (rules_count == RULES_MAX || refuses("create", &calls) ||
      read_rule(attributes, pattern, actions, rule) != 0) {
    refuse(error, "no room for more rules");
    return NULL;
  }
  ++rules_count;
  if (tell_kernel() != 0) perror("rule");
  fprintf(stderr, "rule: VLAN %d, UDP port %d to queue %d\n", rule->vlan, rule->udp_port,
          rule->queue);
  return rule;
}

int rte_flow_destroy(uint16_t port, struct rte_flow* rule, struct rte_flow_error* error) {
  (void)port, (void)error;
  rule->queue = -1;
  fprintf(stderr, "rule of UDP port %d is gone\n", rule->udp_port);
  return tell_kernel();
}

/* ------------------------------------------------------------------------------------------ RSS */
#define TABLE_SIZE 128
static const uint8_t key[40] = {0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67,
                                0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
                                0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
                                0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa};
static unsigned queues_count;

static unsigned table_queries;

/* Not a regular pattern, which might be met by chance. */
static unsigned queue_at(unsigned entry) {
  const unsigned has_changed = rss_is("changes") && table_queries > 1;
  return (entry * 7 / 3 + entry / 16 + has_changed) % queues_count;
}

/* The hash is the sum of the contributions of all bits that are set. */
static int spread_by_rss(void) {
  struct sock_filter code[5 + 3 * (2 + 32 * 5) + 2 + 2 * TABLE_SIZE + 1];
  unsigned short length = 0;
  const unsigned offsets[3] = {12, 16, 20}; /* addresses, then both ports */
  ADD(BPF_STMT(BPF_LD | BPF_B | BPF_ABS, (unsigned)(SKF_NET_OFF + 9)));
  ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 17, 1, 0));
  ADD(BPF_STMT(BPF_RET | BPF_K, 0));
  ADD(BPF_STMT(BPF_LD | BPF_IMM, 0));
  ADD(BPF_STMT(BPF_ST, 0));
  for (unsigned word = 0; word < 3; ++word) {
    ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)SKF_NET_OFF + offsets[word]));
    ADD(BPF_STMT(BPF_MISC | BPF_TAX, 0));
    for (unsigned bit = 0; bit < 32; ++bit) {
      uint32_t tuple[3] = {0, 0, 0};
      tuple[word] = 1u << bit;
      ADD(BPF_STMT(BPF_MISC | BPF_TXA, 0));
      ADD(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 1u << bit, 0, 3));
      ADD(BPF_STMT(BPF_LD | BPF_MEM, 0));
      ADD(BPF_STMT(BPF_ALU | BPF_XOR | BPF_K, rte_softrss(tuple, 3, key)));
      ADD(BPF_STMT(BPF_ST, 0));
    }
  }
  ADD(BPF_STMT(BPF_LD | BPF_MEM, 0));
  ADD(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, TABLE_SIZE - 1));
  for (unsigned entry = 0; entry < TABLE_SIZE; ++entry) {
    const unsigned queue = (queue_at(entry) + (unsigned)rss_is("other")) % queues_count;
    ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, entry, 0, 1));
    ADD(BPF_STMT(BPF_RET | BPF_K, queue));
  }
  ADD(BPF_STMT(BPF_RET | BPF_K, 0));
  return choose_by(code, length);
}

int rte_eth_dev_info_get(uint16_t port, struct rte_eth_dev_info* info) {
  union {
    void* found;
    int (*call)(uint16_t, struct rte_eth_dev_info*);
  } real = {dlsym(RTLD_NEXT, "rte_eth_dev_info_get")};
  const int result = real.call(port, info);
  if (result != 0 || !rss_is(NULL)) return result;
  info->flow_type_rss_offloads = RTE_ETH_RSS_NONFRAG_IPV4_UDP;
  info->reta_size = TABLE_SIZE;
  info->hash_key_size = sizeof key;
  return 0;
}

/* The driver does not support RSS. */
int rte_eth_dev_configure(uint16_t port, uint16_t rx_queues, uint16_t tx_queues,
                          const struct rte_eth_conf* conf) {
  union {
    void* found;
    int (*call)(uint16_t, uint16_t, uint16_t, const struct rte_eth_conf*);
  } real = {dlsym(RTLD_NEXT, "rte_eth_dev_configure")};
  struct rte_eth_conf without = *conf;
  without.rxmode.mq_mode = RTE_ETH_MQ_RX_NONE;
  without.rx_adv_conf.rss_conf.rss_hf = 0;
  queues_count = rx_queues;
  if (rss_is(NULL) && sockets_count > 0) {
    if (spread_by_rss() != 0) perror("RSS");
    const int unused = 0;
    for (unsigned i = 0; i < sockets_count; ++i)
      if (real_setsockopt(queue_sockets[i], SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused))
        perror("filter");
  }
  return real.call(port, rx_queues, tx_queues, rss_is(NULL) ? &without : conf);
}

int rte_eth_dev_rss_hash_conf_get(uint16_t port, struct rte_eth_rss_conf* conf) {
  (void)port;
  if (rss_is("key") || conf->rss_key_len < sizeof key) return -ENOTSUP;
  memcpy(conf->rss_key, key, sizeof key);
  conf->rss_key_len = sizeof key;
  conf->rss_hf = RTE_ETH_RSS_NONFRAG_IPV4_UDP;
  return 0;
}

int rte_eth_dev_rss_reta_query(uint16_t port, struct rte_eth_rss_reta_entry64* groups,
                               uint16_t size) {
  (void)port;
  if (rss_is("table") || size != TABLE_SIZE) return -ENOTSUP;
  if (++table_queries == 2 && rss_is("changes") && spread_by_rss() != 0) perror("RSS");
  for (unsigned entry = 0; entry < TABLE_SIZE; ++entry)
    groups[entry / RTE_ETH_RETA_GROUP_SIZE].reta[entry % RTE_ETH_RETA_GROUP_SIZE] =
        (uint16_t)queue_at(entry);
  return 0;
}
