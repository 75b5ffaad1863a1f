#include "common/net/neighbours.hpp"

#include <algorithm>

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
    entry = &entries_.emplace_back(Entry{.ipv4 = ipv4, .next_request = now});
    entry->claims.reserve(kMaxClaims);
  }
  if (!entry->claims.empty())
    return {.mac = entry->claims.front().mac, .ask = false, .table_full = false};
  if (now < entry->next_request) return {};
  count_request(*entry, now);
  return {.mac = {}, .ask = true, .table_full = false};
}

bool Neighbours::learn(std::uint32_t ipv4, const MacAddress& mac) {
  Entry* entry = find(ipv4);
  if (!entry) return false;
  std::vector<Claim>& claims = entry->claims;
  const bool is_news = claims.empty() || claims.front().mac != mac;
  auto place = std::ranges::find(claims, mac, &Claim::mac);
  if (place == claims.end()) {
    if (claims.size() == kMaxClaims) claims.pop_back();
    claims.push_back({.mac = mac});
    place = claims.end() - 1;
  }
  place->requests = entry->requests;
  std::rotate(claims.begin(), place, place + 1);
  return is_news;
}

bool Neighbours::ask_again(std::uint32_t ipv4, Time now) {
  Entry* entry = find(ipv4);
  if (!entry || now < entry->next_request) return false;
  count_request(*entry, now);
  return true;
}

std::vector<MacAddress> Neighbours::claimants(std::uint32_t ipv4) const {
  std::vector<MacAddress> macs;
  for (const Entry& entry : entries_)
    if (entry.ipv4 == ipv4)
      for (const Claim& claim : entry.claims) macs.push_back(claim.mac);
  return macs;
}

void Neighbours::count_request(Entry& entry, Time now) {
  entry.next_request = after(now, kRequestInterval);
  ++entry.requests;
  while (entry.claims.size() > 1 && entry.requests - entry.claims.back().requests > kRequestsMissed)
    entry.claims.pop_back();
}

}  // namespace sluice::net
