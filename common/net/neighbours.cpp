#include "common/net/neighbours.hpp"

namespace sluice::net {

Neighbours::Entry* Neighbours::find(std::uint32_t ipv4) {
  for (Entry& entry : entries_)
    if (entry.ipv4 == ipv4) return &entry;
  return nullptr;
}

Neighbours::Answer Neighbours::resolve(std::uint32_t ipv4, Time now) {
  Entry* entry = find(ipv4);
  if (!entry) {
    if (entries_.size() == kMax) return {.mac = {}, .ask = false, .table_full = true};
    entry = &entries_.emplace_back(Entry{ipv4, {}, now});
  }
  if (entry->mac) return {.mac = entry->mac, .ask = false, .table_full = false};
  if (now < entry->next_request) return {};
  entry->next_request = after(now, kRequestInterval);
  return {.mac = {}, .ask = true, .table_full = false};
}

bool Neighbours::learn(std::uint32_t ipv4, const MacAddress& mac) {
  Entry* entry = find(ipv4);
  if (!entry || entry->mac == mac) return false;
  entry->mac = mac;
  return true;
}

bool Neighbours::ask_again(std::uint32_t ipv4, Time now) {
  Entry* entry = find(ipv4);
  if (!entry || now < entry->next_request) return false;
  entry->next_request = after(now, kRequestInterval);
  return true;
}

}  // namespace sluice::net
