#include "adapter/trace/source.h"

#include <ATen/SequenceNumber.h>
#include <Python.h>
#include <frameobject.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/function.h>

#include <array>
#include <limits>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "adapter/locks.h"

namespace py = pybind11;

namespace coop {

namespace {

enum class Whose : uint8_t { kUser, kLibrary, kAutograd };

struct Key {
  PyCodeObject* code;
  int line;
  bool operator==(const Key&) const = default;
};

struct KeyHash {
  size_t operator()(const Key& key) const {
    return std::hash<void*>()(key.code) * 31 + static_cast<size_t>(key.line);
  }
};

// Everything is guarded by the GIL, and the lines by a lock of their own besides: traces read them
// under the engine's.
class Sources {
 public:
  static Sources& get() {
    static auto* instance = new Sources();  // never destroyed: Python may be gone by then
    return *instance;
  }

  uint16_t current() {
    const auto node = torch::autograd::get_current_node();
    const uint16_t found = innermost(node.get());
    if (node == nullptr) note(at::sequence_number::peek(), found);
    return found;
  }

  void start() {
    nodes_.fill({});
    // Whose the newest node is, nobody knows.
    note(at::sequence_number::peek(), 0);
  }

  SourceLine line(uint16_t number) const {
    const std::lock_guard<std::mutex> guard(mutex_);
    return lines_.at(number);
  }

  std::vector<SourceLine> lines() const {
    const std::lock_guard<std::mutex> guard(mutex_);
    return lines_;
  }

 private:
  // The sequence number of an autograd node, and the line that made it. Forward passes of more
  // nodes than this lose the oldest.
  struct Node {
    uint64_t sequence = std::numeric_limits<uint64_t>::max();
    uint16_t source = 0;
  };
  static constexpr size_t kNumNodes = 1 << 16;

  Sources() {
    const auto folder = [](const char* module) {
      return py::module_::import(module).attr("__path__").cast<py::list>()[0].cast<std::string>();
    };
    library_ = {folder("torch") + "/", folder("coop") + "/"};
    demo_ = library_.back() + "demo/";
  }

  // Autograd makes an operator's node just before the operator comes to us.
  void note(uint64_t next_sequence, uint16_t source) {
    if (next_sequence == 0) return;
    Node& node = nodes_[(next_sequence - 1) % kNumNodes];
    if (node.sequence != next_sequence - 1) node = {next_sequence - 1, source};
  }

  uint16_t innermost(const torch::autograd::Node* node) {
    auto frame = py::reinterpret_steal<py::object>(py::handle(reinterpret_cast<PyObject*>(  //
        PyThreadState_GetFrame(PyThreadState_Get()))));
    while (frame) {
      auto* raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
      auto* code = PyFrame_GetCode(raw);  // the frame keeps it alive
      Py_DECREF(code);
      switch (whose(code)) {
        case Whose::kUser:
          return number(code, PyFrame_GetLineNumber(raw));
        case Whose::kAutograd:
          if (const uint16_t found = of_node(node); found != 0) return found;
          break;
        case Whose::kLibrary:
          break;
      }
      frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
    }
    return of_node(node);  // a thread of autograd's own
  }

  // The line that made the node, as one of the backward pass.
  uint16_t of_node(const torch::autograd::Node* node) {
    if (node == nullptr) return 0;
    const Node& made = nodes_[node->sequence_nr() % kNumNodes];
    if (made.sequence != node->sequence_nr() || made.source == 0) return 0;
    uint16_t& backward = backward_[made.source];
    if (backward == 0) {
      SourceLine line = lines_[made.source];
      line.backward = true;
      backward = add(std::move(line));
    }
    return backward;
  }

  Whose whose(PyCodeObject* code) {
    const auto found = whose_.find(code);
    if (found != whose_.end()) return found->second;
    const std::string file = text(code->co_filename);
    Whose answer = Whose::kUser;
    for (const std::string& prefix : library_) {
      if (file.starts_with(prefix) && !file.starts_with(demo_)) answer = Whose::kLibrary;
    }
    if (file.starts_with("<frozen ")) answer = Whose::kLibrary;
    if (answer == Whose::kLibrary && text(code->co_name) == "_engine_run_backward") {
      answer = Whose::kAutograd;
    }
    Py_INCREF(code);  // its address is a key from now on
    return whose_.emplace(code, answer).first->second;
  }

  uint16_t number(PyCodeObject* code, int line) {
    uint16_t& found = numbers_[{code, line}];
    if (found == 0) found = add({text(code->co_filename), text(code->co_name), line, false});
    return found;
  }

  uint16_t add(SourceLine line) {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (lines_.size() > std::numeric_limits<uint16_t>::max()) return 0;
    lines_.push_back(std::move(line));
    return static_cast<uint16_t>(lines_.size() - 1);
  }

  static std::string text(PyObject* object) {
    return py::reinterpret_borrow<py::str>(object).cast<std::string>();
  }

  std::vector<std::string> library_;
  std::string demo_;  // an ordinary program, though it comes with coop
  std::unordered_map<PyCodeObject*, Whose> whose_;
  std::unordered_map<Key, uint16_t, KeyHash> numbers_;
  std::unordered_map<uint16_t, uint16_t> backward_;  // line to the same line, backward
  mutable std::mutex mutex_;
  std::vector<SourceLine> lines_{{}};
  std::array<Node, kNumNodes> nodes_;
};

}  // namespace

uint16_t current_source() {
  if (!Py_IsInitialized()) return 0;
  const PythonScope python;
  return Sources::get().current();
}

void start_sources() {
  const PythonScope python;
  Sources::get().start();
}

SourceLine source(uint16_t number) { return Sources::get().line(number); }

std::vector<SourceLine> sources() { return Sources::get().lines(); }

}  // namespace coop
