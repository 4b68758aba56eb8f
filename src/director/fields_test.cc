#include "director/fields.h"

#include <gtest/gtest.h>

#include <string>

namespace penstock::director {
namespace {

TEST(Fields, ARequestIdIsTakenOnlyWhenItIsShortAndVisible) {
  EXPECT_EQ(usable_request_id("abc-1"), "abc-1");
  EXPECT_EQ(usable_request_id(""), "");
  EXPECT_EQ(usable_request_id("a b"), "");
  EXPECT_EQ(usable_request_id(std::string(129, 'a')), "");
}

TEST(Fields, AMadeIdIsAVersion4Uuid) {
  Random random(7);
  std::array<char, 36> id;
  make_request_id(random, id);
  const std::string text(id.data(), id.size());
  EXPECT_EQ(text.find_first_not_of("0123456789abcdef-"), std::string::npos) << text;
  for (const size_t dash : {8, 13, 18, 23}) EXPECT_EQ(text[dash], '-') << text;
  EXPECT_EQ(text[14], '4');
  EXPECT_NE(std::string("89ab").find(text[19]), std::string::npos);
}

TEST(Fields, WhatSteersThePickerOrASidecarIsAControlField) {
  EXPECT_TRUE(is_control_field("x-gateway-destination-endpoint"));
  EXPECT_TRUE(is_control_field("x-prefiller-host-port"));
  EXPECT_FALSE(is_control_field("x-request-id"));
  EXPECT_FALSE(is_control_field("content-type"));
}

}  // namespace
}  // namespace penstock::director
