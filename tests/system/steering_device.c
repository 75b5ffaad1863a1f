/* Preloaded into a process, it gives the af_packet driver what NICs have: rte_flow. Without rules
 * all frames come to queue 0; a rule of Ethernet, a VLAN or none, IPv4 and UDP to a port brings
 * those to another queue. The kernel does it: the sockets of a port's queues choose by a program of
 * ours. The variable STEERING_REFUSES is a kind of call, "validate" or "create", of which the
 * second one fails. Standard error tells of each rule, for the test. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <rte_byteorder.h>
#include <rte_flow.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define RULES_MAX 8

struct rte_flow {
  int vlan; /* -1: frames without a tag */
  int udp_port;
  int queue; /* -1: the rule is gone */
};
static struct rte_flow rules[RULES_MAX];
static int rules_count;
static int queues_socket = -1; /* of a port's queues, one */

static int real_setsockopt(int file, int level, int name, const void* value, socklen_t size) {
  union {
    void* found;
    int (*call)(int, int, int, const void*, socklen_t);
  } real = {dlsym(RTLD_NEXT, "setsockopt")};
  return real.call(file, level, name, value, size);
}

/* The driver asks the kernel to spread frames by their hash. */
int setsockopt(int file, int level, int name, const void* value, socklen_t size) {
  if (level != SOL_PACKET || name != PACKET_FANOUT)
    return real_setsockopt(file, level, name, value, size);
  const int group = (*(const int*)value & 0xffff) | PACKET_FANOUT_CBPF << 16;
  queues_socket = file;
  return real_setsockopt(file, level, name, &group, sizeof group);
}

/* Offsets are from the IPv4 header, which has no options. */
static int tell_kernel(void) {
  struct sock_filter code[8 * RULES_MAX + 1];
  unsigned short length = 0;
#define ADD(...) code[length++] = (struct sock_filter)__VA_ARGS__
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
  const struct sock_fprog program = {length, code};
  return real_setsockopt(queues_socket, SOL_PACKET, PACKET_FANOUT_DATA, &program, sizeof program);
}

static int refuses(const char* call, int* calls) {
  const char* const refused = getenv("STEERING_REFUSES");
  return refused != NULL && strcmp(refused, call) == 0 && ++*calls == 2;
}

static int refuse(struct rte_flow_error* error, const char* why) {
  error->message = why;
  return -ENOTSUP;
}

/* What the rule is; nonzero: another one than this device knows. */
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
