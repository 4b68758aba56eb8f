#pragma once

// The data of scheduling plugins in the policy vectors: what a case gives in a producer's place, and what it
// expects of those that run.

#include <map>
#include <memory>
#include <set>
#include <string>
#include <variant>

#include "assembly/policy_vectors/vector_file_testing.h"
#include "inference/endpoint.h"
#include "inference/plugin.h"

namespace penstock::assembly::vectors {

// What a piece of data says, by field: "" where it is one value. Texts and numbers.
using Fields = std::map<std::string, std::variant<double, std::string>>;

// Given, watched and published data of one case. Endpoints have the names of the pool of the step that runs.
class DataBook {
 public:
  explicit DataBook(const Case& vector);

  Candidate candidate(const std::string& name) const;
  std::string name_of(Candidate c) const { return pool->endpoints[c]->name; }
  bool is_needed() const { return !given.empty() || !watched.empty(); }
  // Every field that stands in the vector, of every endpoint that does; null: nothing is published.
  void check(const std::map<std::string, Node>& expected) const;

  const std::map<std::string, Node>& given;
  std::set<std::string> watched;                                   // keys of others that some step expects
  std::map<std::string, std::map<std::string, Fields>> published;  // by key, then endpoint ("": the request)
  std::shared_ptr<const PoolSnapshot> pool;
};

// Stands in for the producers that a case does without: publishes what the case gives, and notes what other
// producers published for the request. The book outlives it.
std::unique_ptr<Plugin> make_given_data(DataBook& book);

}  // namespace penstock::assembly::vectors
