// SPDX-License-Identifier: Apache-2.0
#include "expression/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "expression/names.h"

namespace strobe::expression {
namespace {

/// What a recursive descent unwinds with at the first error; it never leaves this file.
struct Failure {
  Status status;
};

struct Operator {
  std::string_view symbol;
  Op op;
  bool swapped = false;  // a > b is b < a
  bool negated = false;  // a != b is !(a == b)

  bool is_comparison() const { return op == Op::equal || op == Op::less || op == Op::less_equal; }
};

constexpr std::size_t kLongestHint = 80;  // characters that a message repeats of a text, to say what to write

constexpr Operator kOr[] = {{"||", Op::logical_or}};
constexpr Operator kAnd[] = {{"&&", Op::logical_and}};
constexpr Operator kEqualities[] = {{"==", Op::equal}, {.symbol = "!=", .op = Op::equal, .negated = true}};
constexpr Operator kComparisons[] = {{"<=", Op::less_equal},
                                     {.symbol = ">=", .op = Op::less_equal, .swapped = true},
                                     {"<", Op::less},
                                     {.symbol = ">", .op = Op::less, .swapped = true}};
constexpr Operator kSums[] = {{"+", Op::add}, {"-", Op::add}};
constexpr Operator kProducts[] = {{"*", Op::multiply}, {"/", Op::divide}, {"%", Op::remainder}};
constexpr std::span<const Operator> kLevels[] = {kOr, kAnd, kEqualities, kComparisons, kSums, kProducts};

class Parser {
 public:
  Parser(const Source& source, std::vector<Token> tokens, std::span<const Capture> captures, Graph& graph)
      : source_(source), tokens_(std::move(tokens)), captures_(captures), graph_(graph) {}

  Id whole(bool wants_boolean) {
    if (token().kind == TokenKind::end) fail(token(), "the text is empty");
    const Token first = token();
    const Id id = expression();
    if (token().kind != TokenKind::end) {
      fail(token(), fmt::format("unexpected `{}`{}", token().text, instead_of(token().text)));
    }
    if (!wants_boolean) return as_real(id, first, "the text");
    require(id, Type::boolean, first, "the text");
    return id;
  }

 private:
  [[noreturn]] void fail(const Token& at, std::string_view message) const {
    throw Failure{error_at(source_, at.column, message)};
  }

  const Token& token() const { return tokens_[at_]; }
  bool is(std::string_view symbol) const { return token().kind == TokenKind::symbol && token().text == symbol; }
  bool take(std::string_view symbol) {
    if (!is(symbol)) return false;
    ++at_;
    return true;
  }
  void expect(std::string_view symbol, std::string_view after) {
    if (take(symbol)) return;
    const bool ended = token().kind == TokenKind::end;
    fail(token(), fmt::format("`{}` expected after {}, {}{}", symbol, after,
                              ended ? std::string("but the text ends") : fmt::format("not `{}`", token().text),
                              instead_of(token().text)));
  }

  /// What was read from `first` on, as it was written.
  std::string_view since(const Token& first) const {
    const Token& last = tokens_[at_ - 1];
    return source_.text.substr(first.column - 1, last.column + last.text.size() - first.column);
  }

  Type type_of(Id id) const { return graph_[id].type; }

  void require(Id id, Type type, const Token& at, std::string_view what) const {
    if (type_of(id) == type) return;
    fail(at, fmt::format("{} is {} {} where a{} is needed{}", what, type_of(id) == Type::integer ? "an" : "a",
                         name_of(type_of(id)), type == Type::integer ? "n integer" : fmt::format(" {}", name_of(type)),
                         type == Type::boolean ? "; compare it, as in `x != 0`" : ""));
  }

  /// Numbers as they are, booleans as 0 and 1.
  Id as_number(Id id) {
    if (type_of(id) != Type::boolean) return id;
    return graph_.select(id, graph_.integer(1), graph_.integer(0));
  }
  Id as_real(Id id, const Token& at, std::string_view what) {
    if (type_of(id) == Type::boolean) require(id, Type::real, at, what);
    return type_of(id) == Type::real ? id : graph_.add(Op::to_real, id);
  }

  /// Two numbers of one type.
  std::pair<Id, Id> alike(Id a, Id b) {
    a = as_number(a);
    b = as_number(b);
    if (type_of(a) == type_of(b)) return {a, b};
    if (type_of(a) == Type::integer) return {graph_.add(Op::to_real, a), b};
    return {a, graph_.add(Op::to_real, b)};
  }

  Id expression() {
    if (++depth_ > kDeepest) fail(token(), fmt::format("more than {} levels", kDeepest));
    if (graph_.size() > kMostNodes) fail(token(), fmt::format("more than {} operations", kMostNodes));
    const Token first = token();
    Id id = level(0);
    if (take("?")) {
      require(id, Type::boolean, first, "the condition");
      const Token at = token();
      const Id yes = expression();
      expect(":", "the value of `?`");
      id = chosen(id, yes, expression(), at);
    }
    --depth_;
    return id;
  }

  Id chosen(Id condition, Id yes, Id no, const Token& at) {
    if (type_of(yes) == Type::boolean && type_of(no) == Type::boolean) return graph_.select(condition, yes, no);
    if (type_of(yes) == Type::boolean || type_of(no) == Type::boolean) {
      fail(at, "`? :` between a boolean and a number");
    }
    const auto [a, b] = alike(yes, no);
    return graph_.select(condition, a, b);
  }

  Id level(std::size_t n) {
    if (n == std::size(kLevels)) return unary();
    const Token first = token();
    Id left = level(n + 1);
    std::string_view compared;  // the right side of the comparison that `left` is
    while (const Operator* const found = operator_of(kLevels[n])) {
      const Token& at = token();
      const std::string_view before = since(first);
      ++at_;
      const Token second = token();
      const Id right = level(n + 1);
      if (!compared.empty()) refuse_chain(*found, at, right, fmt::format("{} && {}", before, compared), since(second));
      left = combined(*found, left, first, right, second);
      if (found->is_comparison()) compared = since(second);
    }
    return left;
  }

  /// C compares the truth of `a < b` with c in `a < b < c`, which nobody means. Booleans may be compared in a row by
  /// `==` and `!=`.
  void refuse_chain(const Operator& how, const Token& at, Id right, const std::string& before,
                    std::string_view after) const {
    if (how.op == Op::equal && type_of(right) == Type::boolean) return;
    const bool simple = before.size() + after.size() <= kLongestHint;
    fail(at, fmt::format("comparisons do not chain: write `{}`",
                         simple ? fmt::format("{} {} {}", before, how.symbol, after) : "a <= b && b <= c"));
  }

  const Operator* operator_of(std::span<const Operator> operators) const {
    const auto found = std::ranges::find_if(operators, [&](const Operator& one) { return is(one.symbol); });
    return found == operators.end() ? nullptr : &*found;
  }

  Id combined(const Operator& how, Id a, const Token& at_a, Id b, const Token& at_b) {
    if (graph_.size() > kMostNodes) fail(at_b, fmt::format("more than {} operations", kMostNodes));
    if (how.op == Op::logical_and || how.op == Op::logical_or) {
      const std::string side = fmt::format("the operand of `{}`", how.symbol);
      require(a, Type::boolean, at_a, side);
      require(b, Type::boolean, at_b, side);
      return graph_.add(how.op, a, b);
    }
    std::tie(a, b) = alike(a, b);
    if (how.swapped) std::swap(a, b);
    if (how.symbol == "-") return graph_.subtract(a, b);
    if (how.op == Op::remainder && type_of(a) == Type::real) fail(at_b, "`%` takes integers");
    const Op op = how.op == Op::divide && type_of(a) == Type::integer ? Op::floor_divide : how.op;
    const Id id = graph_.add(op, a, b);
    return how.negated ? graph_.add(Op::logical_not, id) : id;
  }

  Id unary() {
    std::vector<Token> signs;
    while (is("-") || is("+") || is("!")) {
      if (signs.size() >= kDeepest) fail(token(), fmt::format("more than {} signs", kDeepest));
      signs.push_back(token());
      ++at_;
    }
    const Token first = token();
    Id id = primary();
    for (; !signs.empty(); signs.pop_back()) {
      const Token& sign = signs.back();
      if (sign.text == "!") {
        require(id, Type::boolean, first, "the operand of `!`");
        id = graph_.add(Op::logical_not, id);
      } else {
        id = as_number(id);
        if (sign.text == "-") id = graph_.add(Op::negate, id);
      }
    }
    return id;
  }

  Id primary() {
    const Token first = token();
    if (take("(")) {
      const Id id = expression();
      expect(")", "a parenthesis");
      return id;
    }
    switch (first.kind) {
      case TokenKind::integer: ++at_; return integer(first);
      case TokenKind::real: ++at_; return real(first);
      case TokenKind::name: ++at_; return named(first);
      case TokenKind::end: fail(first, "a value expected, but the text ends");
      default: fail(first, fmt::format("a value expected, not `{}`{}", first.text, hint_at(first)));
    }
  }

  /// Of `**`, which is two tokens, and of whatever else other languages have in the place of a value.
  std::string hint_at(const Token& found) const {
    const bool power = found.text == "*" && at_ > 0 && tokens_[at_ - 1].text == "*";
    return instead_of(power ? "**" : found.text);
  }

  Id integer(const Token& at) {
    std::int32_t value = 0;
    const auto [end, error] = std::from_chars(at.text.data(), at.text.data() + at.text.size(), value);
    if (error != std::errc()) fail(at, fmt::format("`{}` is beyond 2147483647", at.text));
    return graph_.integer(value);
  }

  Id real(const Token& at) {
    float value = 0.0F;
    const auto [end, error] = std::from_chars(at.text.data(), at.text.data() + at.text.size(), value);
    if (error != std::errc()) fail(at, fmt::format("`{}` is not within the range of float32", at.text));
    return graph_.real(value);
  }

  Id named(const Token& at) {
    if (at.text == "true" || at.text == "false") return graph_.boolean(at.text == "true");
    if (at.text == "inf") return graph_.real(std::numeric_limits<double>::infinity());
    const auto capture = std::ranges::find(captures_, at.text, &Capture::name);
    if (capture != captures_.end()) return load(static_cast<int>(capture - captures_.begin()), at);
    if (const std::optional<Variable> variable = find_variable(at.text)) {
      if (*variable == Variable::score && source_.what == "mask") fail(at, "a mask may not read `score`");
      return graph_.variable(*variable);
    }
    if (at.text == "pow") return power(at);
    if (const Function* const function = find_function(at.text)) return call(*function, at);
    std::vector<std::string> names;
    for (const Capture& one : captures_) names.push_back(one.name);
    const std::string hint = instead_of(at.text);
    fail(at, fmt::format("unknown name `{}`{}", at.text, hint.empty() ? suggestion(at.text, names) : hint));
  }

  Id load(int capture, const Token& at) {
    const Capture& tensor = captures_[capture];
    if (is("(") && tensor.rank > 0) {
      ++at_;
      fail(at,
           fmt::format("`{}` is a capture, not a function: write `{}`", at.text, in_brackets(std::string(at.text))));
    }
    std::vector<Id> indices;
    while (take("[")) {
      const Token first = token();
      const Id index = expression();
      require(index, Type::integer, first, "an index");
      if (is(",")) {
        const Token comma = token();
        const std::string before = fmt::format("{}]", since(at));
        ++at_;
        fail(comma, fmt::format("each index has brackets of its own: write `{}`", in_brackets(before)));
      }
      expect("]", "an index");
      indices.push_back(index);
    }
    if (static_cast<int>(indices.size()) != tensor.rank) {
      fail(at, fmt::format("`{}` has {} dimension{}, but {} ind{} given", tensor.name, tensor.rank,
                           tensor.rank == 1 ? "" : "s", indices.size(), indices.size() == 1 ? "ex is" : "ices are"));
    }
    return graph_.load(capture, expression::type_of(tensor), indices);
  }

  /// `before` and the list of values that follows, each as an index; an example where that is long.
  std::string in_brackets(std::string before) {
    do {
      const Token first = token();
      expression();
      before += fmt::format("[{}]", since(first));
    } while (take(","));
    return before.size() <= kLongestHint ? before : "bias[head][q - k]";
  }

  std::vector<Id> arguments(const Token& at, int parameters) {
    expect("(", fmt::format("`{}`", at.text));
    std::vector<Id> ids;
    if (!is(")")) {
      do ids.push_back(expression());
      while (take(","));
    }
    expect(")", fmt::format("the arguments of `{}`", at.text));
    if (static_cast<int>(ids.size()) != parameters) {
      fail(at, fmt::format("`{}` takes {} argument{}, not {}", at.text, parameters, parameters == 1 ? "" : "s",
                           ids.size()));
    }
    return ids;
  }

  Id call(const Function& function, const Token& at) {
    std::vector<Id> ids = arguments(at, function.parameters);
    for (Id& id : ids) {
      id = as_number(id);
      if (!function.integers_too) id = as_real(id, at, "the argument");
    }
    if (ids.size() == 1) return graph_.add(function.op, ids[0]);
    const auto [a, b] = alike(ids[0], ids[1]);
    return graph_.add(function.op, a, b);
  }

  /// By products where the exponent is a small integer, by roots where it is a half, else by exp and log.
  Id power(const Token& at) {
    const std::vector<Id> ids = arguments(at, 2);
    const Id base = as_real(as_number(ids[0]), at, "the base");
    const std::optional<double> exponent = literal_of(as_real(as_number(ids[1]), at, "the exponent"));
    if (!exponent) fail(at, "the exponent of `pow` must be a number, not an expression");
    const double magnitude = std::abs(*exponent);
    Id id = 0;
    if (magnitude == std::floor(magnitude) && magnitude <= 16.0) {
      id = graph_.real(1.0);
      for (int i = 0; i < static_cast<int>(magnitude); ++i) id = i == 0 ? base : graph_.add(Op::multiply, id, base);
    } else if (magnitude == 0.5) {
      return graph_.add(*exponent < 0.0 ? Op::rsqrt : Op::sqrt, base);
    } else {
      return graph_.add(Op::exp, graph_.add(Op::multiply, graph_.real(*exponent), graph_.add(Op::log, base)));
    }
    return *exponent < 0.0 ? graph_.add(Op::divide, graph_.real(1.0), id) : id;
  }

  std::optional<double> literal_of(Id id) const {
    const Node& node = graph_[id];
    if (node.op == Op::literal) return node.value;
    if (node.op != Op::negate && node.op != Op::to_real) return std::nullopt;
    const std::optional<double> inner = literal_of(node.children[0]);
    if (!inner) return std::nullopt;
    return node.op == Op::negate ? -*inner : *inner;
  }

  const Source& source_;
  std::vector<Token> tokens_;
  std::span<const Capture> captures_;
  Graph& graph_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

Type type_of(const Capture& capture) {
  switch (capture.dtype) {
    case DType::int32:
    case DType::int64: return Type::integer;
    case DType::uint8: return Type::boolean;
    default: return Type::real;
  }
}

Result<Id> parse(const Source& source, std::span<const Capture> captures, bool wants_boolean, Graph& graph) {
  if (source.text.size() > kLongestText) {
    return Status(StatusCode::invalid_argument, fmt::format("{}: the text has {} characters, of which {} are the most",
                                                            source.what, source.text.size(), kLongestText));
  }
  Result<std::vector<Token>> tokens = tokenize(source);
  if (!tokens.ok()) return tokens.status();
  try {
    return Parser(source, std::move(*tokens), captures, graph).whole(wants_boolean);
  } catch (Failure& failure) {
    return std::move(failure.status);
  }
}

}  // namespace strobe::expression
