#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/hash.h"
#include "base/result.h"
#include "kubernetes/json.h"

namespace penstock::kubernetes {

// Where a reflector puts what it learns of one resource. One thread.
class ObjectSink {
 public:
  virtual ~ObjectSink() = default;
  // All objects come again: what is not put until end_replace() is gone then, and stays until then.
  virtual void begin_replace() = 0;
  virtual void end_replace() = 0;
  // Error: this version can't be read, or (kResourceExhausted) is not kept since there is no room; the last
  // good one of the object stays.
  virtual Status put(std::string_view key, std::string_view resource_version, Json object) = 0;
  virtual void remove(std::string_view key) = 0;
  // After what came together: the time to act on it.
  virtual void batch_end() = 0;
  virtual size_t size() const = 0;
  // What the records take in memory, where they say so; else 0.
  virtual size_t bytes() const { return 0; }
  // Of the newest version put, readable or not, for which there was room; "" when the object isn't known.
  virtual std::string_view version_of(std::string_view key) const = 0;
  virtual void for_each_key(const std::function<void(std::string_view key)>& each) const = 0;
};

// Records of one resource by key, made of objects by `decode`. `changed` is called at the end of a batch that
// changed a record, and after the first whole list even when it is empty. Records that say their bytes() take
// no more than `max_bytes` in all. One thread.
template <typename Record>
class Store final : public ObjectSink {
 public:
  using Decode = std::function<Result<Record>(Json object)>;
  Store(Decode decode, std::function<void()> changed, size_t max_bytes = SIZE_MAX)
      : decode_(std::move(decode)), changed_(std::move(changed)), max_bytes_(max_bytes) {}

  void begin_replace() override { ++round_; }
  void end_replace() override {
    for (auto it = entries_.begin(); it != entries_.end();) {
      if (it->second.round == round_) {
        ++it;
        continue;
      }
      dirty_ |= it->second.readable;
      bytes_ -= bytes_of(it->second);
      it = entries_.erase(it);
    }
    dirty_ |= !complete_;
    complete_ = true;
  }
  Status put(std::string_view key, std::string_view resource_version, Json object) override {
    Result<Record> record = decode_(object);
    auto it = entries_.find(key);
    if constexpr (kSized) {
      const size_t others = bytes_ - (it == entries_.end() ? 0 : bytes_of(it->second));
      if (record.ok() && others + record->bytes() > max_bytes_) {
        if (it != entries_.end()) it->second.round = round_;
        return Error{ErrorCode::kResourceExhausted, "the objects take too much memory"};
      }
    }
    if (it == entries_.end()) it = entries_.emplace(std::string(key), Entry()).first;
    Entry& entry = it->second;
    entry.round = round_;
    entry.resource_version = resource_version;
    if (!record.ok()) return std::move(record).error();
    if constexpr (requires { entry.record == *record; }) {
      if (entry.readable && entry.record == *record) return {};
    }
    bytes_ -= bytes_of(entry);
    entry.record = *std::move(record);
    entry.readable = true;
    bytes_ += bytes_of(entry);
    dirty_ = true;
    return {};
  }
  void remove(std::string_view key) override {
    const auto it = entries_.find(key);
    if (it == entries_.end()) return;
    dirty_ |= it->second.readable;
    bytes_ -= bytes_of(it->second);
    entries_.erase(it);
  }
  void batch_end() override {
    if (!complete_ || !std::exchange(dirty_, false)) return;
    if (changed_) changed_();
  }
  size_t size() const override { return entries_.size(); }
  size_t bytes() const override { return bytes_; }
  std::string_view version_of(std::string_view key) const override {
    const auto it = entries_.find(key);
    return it == entries_.end() ? std::string_view() : std::string_view(it->second.resource_version);
  }
  void for_each_key(const std::function<void(std::string_view)>& each) const override {
    for (const auto& [key, entry] : entries_) each(key);
  }

  // A whole list was seen once.
  bool complete() const { return complete_; }
  // Every object that could be read, in no order.
  template <typename Each>
  void for_each(Each&& each) const {
    for (const auto& [key, entry] : entries_) {
      if (entry.readable) each(key, entry.record);
    }
  }

 private:
  static constexpr bool kSized = requires(const Record& record) { record.bytes(); };
  struct Entry {
    Record record{};
    std::string resource_version;
    uint32_t round = 0;
    bool readable = false;
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return hash_of(text); }
  };
  static size_t bytes_of(const Entry& entry) {
    if constexpr (kSized) {
      return entry.readable ? entry.record.bytes() : 0;
    } else {
      return 0;
    }
  }

  Decode decode_;
  std::function<void()> changed_;
  const size_t max_bytes_;
  size_t bytes_ = 0;
  std::unordered_map<std::string, Entry, Hash, std::equal_to<>> entries_;
  uint32_t round_ = 0;
  bool complete_ = false;
  bool dirty_ = false;
};

}  // namespace penstock::kubernetes
