#include "admin/admin_server.h"

#include <gtest/gtest.h>

namespace penstock::admin {
namespace {

TEST(AdminServer, TakesChangesFromThisMachineOnly) {
  const auto taken = [](std::string_view ip) {
    const auto peer = io::SocketAddress::from_ip(ip, 4711);
    return peer && on_this_machine(*peer);
  };
  for (const std::string_view ip : {"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"})
    EXPECT_TRUE(taken(ip)) << ip;
  for (const std::string_view ip :
       {"10.0.0.1", "128.0.0.1", "192.0.2.127", "0.0.0.0", "::", "fe80::1", "::ffff:10.0.0.1", "1::1"})
    EXPECT_FALSE(taken(ip)) << ip;
}

}  // namespace
}  // namespace penstock::admin
