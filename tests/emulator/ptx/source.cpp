// SPDX-License-Identifier: Apache-2.0
#include "ptx/source.h"

#include <cstdlib>
#include <cstring>

#include "ptx/cursor.h"
#include "ptx/names.h"

namespace strobe::emulator {
namespace {

std::string message(int line, std::string_view text, std::string_view why) {
  return "PTX line " + std::to_string(line) + ": " + std::string(why) + ": " +
         std::string(trimmed(text)).substr(0, 300);
}

/// With spaces in the place of comments, so that lines and columns stay what they are.
void blank_comments(std::string& text) {
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] == '"') {
      i = text.find('"', i + 1);
      if (i == std::string::npos) return;
    } else if (text[i] == '/' && text[i + 1] == '/') {
      while (i < text.size() && text[i] != '\n') text[i++] = ' ';
    } else if (text[i] == '/' && text[i + 1] == '*') {
      const std::size_t end = std::min(text.find("*/", i), text.size() - 2);
      for (; i < end + 2; ++i) {
        if (text[i] != '\n') text[i] = ' ';
      }
    }
  }
}

std::int64_t align(std::int64_t offset, std::int64_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

class Parser {
 public:
  explicit Parser(SourceModule& module) : module_(module), cursor_(module.text) {}

  void parse() {
    while (!cursor_.at_end()) {
      const std::size_t begin = cursor_.position();
      const std::string_view word = cursor_.word();
      if (word == ".version" || word == ".target" || word == ".address_size" || word == ".file") {
        cursor_.until('\n');
      } else if (word == ".visible" || word == ".weak" || word == ".extern" || word == ".common") {
        is_extern_ = word == ".extern";
      } else if (word == ".entry") {
        kernel();
      } else if (word == ".global" || word == ".const" || word == ".shared") {
        module_.symbols.push_back(variable(word));
      } else if (word == ".pragma") {
        cursor_.until(';');
      } else {
        fail(std::string_view(module_.text).substr(begin, 80), "not understood at this place");
      }
    }
  }

 private:
  [[noreturn]] void fail(std::string_view text, std::string_view why) const {
    throw UnsupportedPtx(cursor_.line(), text, why);
  }

  std::unique_ptr<Symbol> variable(std::string_view space) {
    auto symbol = std::make_unique<Symbol>();
    symbol->space = space == ".shared"  ? Space::shared
                    : space == ".local" ? Space::local
                    : space == ".const" ? Space::constant
                    : space == ".param" ? Space::param
                                        : Space::global;
    const std::string_view text = space == ".param" ? cursor_.before_any(",)") : cursor_.until(';');
    Cursor words(text);
    std::string_view word = words.word();
    std::int64_t element = 1;
    while (word.starts_with('.')) {
      if (word == ".align") {
        symbol->alignment = std::atoll(std::string(words.word()).c_str());
      } else if (word != ".ptr" && word != ".global" && word != ".attribute") {
        element = type_bytes(word);
        symbol->alignment = std::max(symbol->alignment, element);
      }
      word = words.word();
    }
    symbol->name = word;
    std::int64_t count = 1;
    while (words.take('[')) {
      const std::string_view length = trimmed(words.until(']'));
      if (length.empty()) symbol->is_dynamic = is_extern_;
      count *= length.empty() ? 0 : std::atoll(std::string(length).c_str());
    }
    symbol->bytes = element * count;
    if (words.take('=')) initial_values(words, element, *symbol);
    is_extern_ = false;
    return symbol;
  }

  void initial_values(Cursor& words, std::int64_t element, Symbol& symbol) {
    symbol.initial.assign(static_cast<std::size_t>(symbol.bytes), 0);
    std::string_view values = words.take('{') ? words.until('}') : words.until(';');
    std::size_t at = 0;
    split_at_commas(values, [&](std::string_view value) {
      const SourceOperand parsed = number_in(value);
      if (parsed.kind == SourceOperand::Kind::none) fail(value, "an initial value that is no number");
      if (at + static_cast<std::size_t>(element) <= symbol.initial.size()) {
        std::memcpy(symbol.initial.data() + at, &parsed.integer, static_cast<std::size_t>(element));
      }
      at += static_cast<std::size_t>(element);
    });
  }

  void kernel() {
    auto kernel = std::make_unique<SourceKernel>();
    kernel_ = kernel.get();
    kernel->name = cursor_.word();
    names_ = std::make_unique<Names>(module_, *kernel);
    if (cursor_.take('(')) parameters();
    directives();
    body();
    resolve_labels();
    for (const auto& symbol : module_.symbols) place_shared(*symbol);
    for (const auto& symbol : kernel->locals) place_shared(*symbol);
    for (const auto& symbol : module_.symbols) {
      if (symbol->space != Space::shared || !symbol->is_dynamic) continue;
      kernel->static_shared = align(kernel->static_shared, symbol->alignment);
      symbol->offset = kSharedBase + kernel->static_shared;
    }
    module_.kernels.push_back(std::move(kernel));
  }

  void place_shared(Symbol& symbol) {
    if (symbol.space != Space::shared || symbol.is_dynamic) return;
    kernel_->static_shared = align(kernel_->static_shared, symbol.alignment);
    symbol.offset = kSharedBase + kernel_->static_shared;
    kernel_->static_shared += symbol.bytes;
  }

  void parameters() {
    while (!cursor_.take(')')) {
      if (cursor_.word() != ".param") fail("", "a parameter was expected");
      auto symbol = variable(".param");
      kernel_->param_bytes = align(kernel_->param_bytes, symbol->alignment);
      symbol->offset = kernel_->param_bytes;
      kernel_->param_bytes += symbol->bytes;
      kernel_->params.push_back(std::move(symbol));
      cursor_.take(',');
    }
  }

  void directives() {
    while (!cursor_.take('{')) {
      const std::string_view directive = cursor_.word();
      if (directive.empty()) fail("", "a kernel's body was expected");
      const std::string_view values = cursor_.until('\n');
      if (directive == ".maxntid" || directive == ".reqntid") {
        kernel_->max_threads = 1;
        split_at_commas(values,
                        [this](std::string_view v) { kernel_->max_threads *= std::atoi(std::string(v).c_str()); });
      } else if (directive == ".reqnctapercluster") {
        std::size_t axis = 0;
        split_at_commas(values, [&](std::string_view v) {
          kernel_->cluster.at(axis++) = static_cast<unsigned>(std::atoi(std::string(v).c_str()));
        });
      } else if (directive == ".minnctapersm") {
        kernel_->min_blocks = std::atoi(std::string(values).c_str());
      }
    }
  }

  void body() {
    int scope = 0;
    for (;;) {
      if (cursor_.take('}')) {
        if (scope == 0) return;
        scope = names_->parent_of(scope);
      } else if (cursor_.take('{')) {
        scope = names_->open_scope(scope);
      } else if (cursor_.at_end()) {
        fail("", "the text ends within a kernel");
      } else {
        item(scope);
      }
    }
  }

  void item(int scope) {
    const std::size_t begin = cursor_.position();
    const int line = cursor_.line();
    const std::string_view word = cursor_.word();
    if (word == ".reg") return registers(scope, cursor_.until(';'));
    if (word == ".local" || word == ".shared") return own_variable(word);
    if (word == ".loc") return static_cast<void>(cursor_.until('\n'));
    if (word == ".pragma") return static_cast<void>(cursor_.until(';'));
    if (word == ".branchtargets") return branch_targets(scope, cursor_.until(';'));
    if (!word.empty() && word.front() != '.' && cursor_.peek() == ':' && word.find('.') == std::string_view::npos) {
      cursor_.take(':');
      last_label_ = word;
      names_->set_label(scope, word, static_cast<int>(kernel_->statements.size()));
      return;
    }
    cursor_.back_to(begin);
    statement(scope, line, cursor_.until(';'));
  }

  void own_variable(std::string_view space) {
    auto symbol = variable(space);
    if (symbol->space == Space::local) {
      kernel_->local_bytes = align(kernel_->local_bytes, symbol->alignment);
      symbol->offset = kernel_->local_bytes;
      kernel_->local_bytes += symbol->bytes;
    }
    kernel_->locals.push_back(std::move(symbol));
  }

  void registers(int scope, std::string_view declaration) {
    Cursor words(declaration);
    const RegisterKind kind = kind_of(words.word());
    split_at_commas(declaration.substr(words.position()),
                    [&](std::string_view name) { names_->declare(scope, name, kind); });
  }

  void branch_targets(int scope, std::string_view names) {
    split_at_commas(names, [&](std::string_view name) {
      pending_targets_.push_back({scope, std::string(last_label_), std::string(name)});
    });
  }

  void statement(int scope, int line, std::string_view text) {
    Statement parsed;
    parsed.line = line;
    parsed.text = text;
    parsed.scope = scope;
    std::string_view rest = trimmed(text);
    if (rest.starts_with('@')) {
      Cursor guard(rest.substr(1));
      parsed.guard_negated = guard.take('!');
      parsed.guard = names_->find_register(scope, guard.word());
      if (parsed.guard < 0) throw UnsupportedPtx(line, text, "the guard is no register");
      rest = trimmed(rest.substr(1 + guard.position()));
    }
    std::size_t end = 0;
    while (end < rest.size() && std::isspace(static_cast<unsigned char>(rest[end])) == 0) ++end;
    std::string_view opcode = rest.substr(0, end);
    while (!opcode.empty()) {
      const std::size_t dot = std::min(opcode.find('.'), opcode.size());
      parsed.opcode.push_back(opcode.substr(0, dot));
      opcode.remove_prefix(std::min(dot + 1, opcode.size()));
    }
    if (parsed.opcode.empty()) throw UnsupportedPtx(line, text, "no instruction");
    split_at_commas(rest.substr(end),
                    [&](std::string_view piece) { parsed.operands.push_back(operand(scope, line, piece)); });
    kernel_->statements.push_back(std::move(parsed));
  }

  SourceOperand operand(int scope, int line, std::string_view text) {
    SourceOperand parsed;
    if (text.starts_with('!')) {
      parsed = operand(scope, line, trimmed(text.substr(1)));
      parsed.negated = true;
      return parsed;
    }
    if (text.starts_with('{') || text.starts_with('[')) {
      const bool is_vector = text.starts_with('{');
      parsed.kind = is_vector ? SourceOperand::Kind::vector : SourceOperand::Kind::address;
      split_at_commas(text.substr(1, text.size() - 2), [&](std::string_view piece) {
        SourceOperand part = operand(scope, line, piece);
        if (part.kind == SourceOperand::Kind::vector && !is_vector) {
          for (SourceOperand& inner : part.parts) parsed.parts.push_back(std::move(inner));
        } else {
          parsed.parts.push_back(std::move(part));
        }
      });
      if (!is_vector && !parsed.parts.empty()) std::swap(parsed.integer, parsed.parts[0].integer);
      if (!is_vector && !parsed.parts.empty() && parsed.parts[0].kind == SourceOperand::Kind::integer) {
        std::swap(parsed.integer, parsed.parts[0].integer);
      }
      return parsed;
    }
    if (const std::size_t bar = text.find('|'); bar != std::string_view::npos) {
      parsed.kind = SourceOperand::Kind::pair;
      parsed.parts = {operand(scope, line, trimmed(text.substr(0, bar))),
                      operand(scope, line, trimmed(text.substr(bar + 1)))};
      return parsed;
    }
    parsed = number_in(text);
    if (parsed.kind != SourceOperand::Kind::none) return parsed;
    return named_operand(scope, line, text);
  }

  SourceOperand named_operand(int scope, int line, std::string_view text) {
    SourceOperand parsed;
    const std::size_t plus = text.find_first_of("+-");
    const std::string_view name = trimmed(text.substr(0, plus));
    if (plus != std::string_view::npos) {
      std::string_view offset = trimmed(text.substr(text[plus] == '+' ? plus + 1 : plus));
      parsed.integer = number_in(offset).integer;
    }
    if (name == "_") return parsed;
    if (parsed.number = names_->find_register(scope, name); parsed.number >= 0) {
      parsed.kind = SourceOperand::Kind::reg;
    } else if (name.starts_with('%') || name == "WARP_SZ") {
      parsed.kind = SourceOperand::Kind::special;
      parsed.name = name;
    } else if (parsed.symbol = names_->find_symbol(name); parsed.symbol != nullptr) {
      parsed.kind = SourceOperand::Kind::symbol;
    } else if (!name.empty() && is_name(name[0])) {
      parsed.kind = SourceOperand::Kind::label;
      parsed.name = name;
    } else {
      throw UnsupportedPtx(line, text, "an operand that is not understood");
    }
    return parsed;
  }

  void resolve_labels() {
    for (Statement& statement : kernel_->statements) {
      for (SourceOperand& operand : statement.operands) {
        if (operand.kind != SourceOperand::Kind::label) continue;
        operand.number = names_->find_label(statement.scope, operand.name);
        if (operand.number < 0 && statement.opcode[0] != "brx") {
          throw UnsupportedPtx(statement.line, statement.text, "an unknown name, " + operand.name);
        }
      }
    }
    for (const PendingTarget& target : pending_targets_) {
      kernel_->branch_targets[target.list].push_back(names_->find_label(target.scope, target.label));
    }
    pending_targets_.clear();
  }

  struct PendingTarget {
    int scope;
    std::string list, label;
  };

  SourceModule& module_;
  Cursor cursor_;
  SourceKernel* kernel_ = nullptr;
  std::unique_ptr<Names> names_;
  std::vector<PendingTarget> pending_targets_;
  std::string_view last_label_;
  bool is_extern_ = false;
};

}  // namespace

UnsupportedPtx::UnsupportedPtx(int line, std::string_view text, std::string_view why)
    : std::runtime_error(message(line, text, why)) {}

bool Statement::has(std::string_view modifier) const {
  return std::find(opcode.begin() + 1, opcode.end(), modifier) != opcode.end();
}

std::unique_ptr<SourceModule> parse_ptx(std::string text) {
  auto module = std::make_unique<SourceModule>();
  module->text = std::move(text);
  blank_comments(module->text);
  Parser(*module).parse();
  return module;
}

}  // namespace strobe::emulator
