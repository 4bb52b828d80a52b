// SPDX-License-Identifier: Apache-2.0
// A score or mask expression as a directed acyclic graph: every value is a node, equal values are one node, and what
// can be simplified is simplified when it is added.
//
// Arithmetic. A real is a float32 on engines and a float64 in the reference; an integer is 32 bits and wraps around;
// division and remainder of integers round to minus infinity and give 0 for a divisor of 0. So every operation has a
// value for all operands.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace strobe::expression {

enum class Type : std::uint8_t { boolean, integer, real };

enum class Op : std::uint8_t {
  literal,
  variable,    // Node::which is a Variable
  load,        // an element of capture Node::which at the children's indices; outside of it 0
  to_integer,  // towards 0, saturating; 0 of what is not a number
  to_real,
  negate,
  add,
  multiply,
  divide,        // reals
  floor_divide,  // integers
  remainder,     // integers
  minimum,
  maximum,
  absolute,
  exp,
  exp2,
  log,
  tanh,
  sigmoid,
  sqrt,
  rsqrt,
  sin,
  cos,
  floor,
  less,
  less_equal,
  equal,
  logical_and,
  logical_or,
  logical_not,
  select,  // children: condition, value where it holds, value elsewhere
};

/// What a text reads of the pair of a query and a key that it is evaluated for. All but the score are integers.
enum class Variable : std::uint8_t { score, q, k, head, head_kv, batch, q_len, k_len };

inline constexpr int kMostChildren = 4;

/// The place of a node in its graph; children come before their parents.
using Id = std::uint32_t;

struct Node {
  Op op = Op::literal;
  Type type = Type::real;
  std::uint8_t count = 0;  // of children
  std::uint8_t which = 0;  // of variables and captures
  std::array<Id, kMostChildren> children{};
  double value = 0.0;  // of literals; a boolean is 0 or 1

  bool operator==(const Node&) const = default;
  std::span<const Id> inputs() const { return {children.data(), count}; }
};

class Graph {
 public:
  /// Not simplified: nodes are shared, but stand as they were added.
  explicit Graph(bool simplified = true) : simplified_(simplified) {}

  Id literal(Type type, double value);
  Id real(double value) { return literal(Type::real, value); }
  Id integer(std::int32_t value) { return literal(Type::integer, value); }
  Id boolean(bool value) { return literal(Type::boolean, value ? 1.0 : 0.0); }
  Id variable(Variable variable);
  Id load(int capture, Type type, std::span<const Id> indices);
  /// A node with operands of the types that the operation takes. Mixed integers and reals are the caller's to convert.
  Id add(Op op, Id a);
  Id add(Op op, Id a, Id b);
  Id select(Id condition, Id yes, Id no);

  Id subtract(Id a, Id b) { return add(Op::add, a, add(Op::negate, b)); }

  const Node& operator[](Id id) const { return nodes_[id]; }
  std::size_t size() const { return nodes_.size(); }

  /// A number that depends on the node's value as written, not on when it was added.
  std::uint64_t hash(Id id) const { return hashes_[id]; }
  bool is_literal(Id id, double value) const { return nodes_[id].op == Op::literal && nodes_[id].value == value; }
  bool is_literal(Id id) const { return nodes_[id].op == Op::literal; }

 private:
  friend class Simplify;

  Id insert(const Node& node);

  bool simplified_;
  std::vector<Node> nodes_;
  std::vector<std::uint64_t> hashes_;
  std::unordered_multimap<std::uint64_t, Id> by_hash_;
};

/// Of an operation's result, from its first value operand's.
Type result_type(Op op, Type operand);

/// Whether a + b is b + a.
bool is_commutative(Op op);

/// The nodes that `roots` need, in the order of the graph: children first. What `kept` need is not among them, as those
/// are there.
std::vector<Id> reachable(const Graph& graph, std::span<const Id> roots, std::span<const Id> kept = {});

/// Which variables a node depends on, a bit for each; captures count by their indices.
using Variables = std::uint32_t;
constexpr Variables bit(Variable variable) { return 1U << static_cast<unsigned>(variable); }
std::vector<Variables> dependencies(const Graph& graph);

}  // namespace strobe::expression
