#include "config/api_keys.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <optional>
#include <set>

#include "base/escapes.h"
#include "config/decode.h"
#include "config/files.h"
#include "config/node.h"

namespace penstock::config {

namespace {

constexpr size_t kMaxFileBytes = 4 << 20;

std::optional<std::array<unsigned char, 32>> parse_digest(std::string_view hex) {
  std::array<unsigned char, 32> out{};
  if (hex.size() != out.size() * 2) return std::nullopt;
  for (size_t i = 0; i < out.size(); ++i) {
    const int high = hex_digit(hex[2 * i]);
    const int low = hex_digit(hex[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    out[i] = static_cast<unsigned char>(high * 16 + low);
  }
  return out;
}

std::array<unsigned char, 32> sha256(std::string_view text) {
  std::array<unsigned char, 32> digest{};
  unsigned int length = 0;
  EVP_Digest(text.data(), text.size(), digest.data(), &length, EVP_sha256(), nullptr);
  return digest;
}

}  // namespace

Result<std::shared_ptr<const ApiKeys>> ApiKeys::decode(std::string_view text, std::string_view source) {
  Result<Node> document = parse_document(text, source, ParseLimits{.max_bytes = kMaxFileBytes});
  if (!document) return std::move(document).error();
  auto keys = std::make_shared<ApiKeys>();
  Errors errors;
  std::set<std::array<unsigned char, 32>> seen;
  const Node* list = nullptr;
  decode_object(&*document, "", errors, [&](Binder& b) { b.node("keys", list, "List of {name, sha256}."); });
  // A file that somebody has truncated and not written yet must not lock everybody out.
  if (errors.empty() && list == nullptr)
    errors.add("keys", "nothing is listed; \"keys: []\" says that nobody may enter", document->line);
  for_each_item(list, "keys", errors, [&](const Node& item, const std::string& path) {
    Key key;
    std::string hex;
    decode_object(&item, path, errors, [&](Binder& b) {
      b.field("name", key.name, "", "The caller's name in logs and metrics.");
      b.field("sha256", hex, "hex", "SHA-256 of the key.");
    });
    const auto digest = parse_digest(hex);
    if (key.name.empty()) errors.add(path + ".name", "must not be empty", item.line);
    if (!digest) {
      errors.add(path + ".sha256", "expected 64 hexadecimal digits", item.line);
      return;
    }
    key.digest = *digest;
    if (!seen.insert(key.digest).second) {
      errors.add(path + ".sha256", "the same key is listed twice", item.line);
    }
    keys->keys_.push_back(std::move(key));
  });
  if (keys->keys_.size() > kMaxApiKeys) {
    errors.add(fmt::format("keys: {} keys, more than the {} allowed", keys->keys_.size(), kMaxApiKeys));
  }
  if (!errors.empty()) return errors.joined().wrap(source);
  return std::shared_ptr<const ApiKeys>(std::move(keys));
}

Result<std::shared_ptr<const ApiKeys>> ApiKeys::load(const std::string& path) {
  Result<std::string> text = read_file(path, kMaxFileBytes);
  if (!text) return std::move(text).error();
  return decode(*text, path);
}

const std::string* ApiKeys::find(std::string_view presented_key) const {
  const std::array<unsigned char, 32> digest = sha256(presented_key);
  const std::string* found = nullptr;
  for (const Key& key : keys_) {
    const bool same = CRYPTO_memcmp(key.digest.data(), digest.data(), digest.size()) == 0;
    found = same ? &key.name : found;
  }
  return found;
}

}  // namespace penstock::config
