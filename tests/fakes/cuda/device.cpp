// Devices of torch's type CUDA whose memory is the host's, for builds of torch without CUDA.
//
// What torch asks of a device in C++: memory, a guard with the current stream of each thread, generators, pinned memory.
// Kernels, streams and graphs are in Python (kernels.py, streams.py, graphs.py); their clocks are here, since torch's
// autograd records events and waits for them by itself.

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

namespace {

constexpr c10::DeviceIndex COUNT = 2;
thread_local c10::DeviceIndex current_index = 0;
std::mutex mutex;  // of everything below

c10::Device device_of(c10::DeviceIndex index) {
  return c10::Device(c10::DeviceType::CUDA, index < 0 ? current_index : index);
}

// --- Clocks: a vector clock for each stream and one for the host (Lamport 1978; Fidge, Mattern 1988). A launch on a
// stream is known by the stream and its number there.

using Clock = std::map<int64_t, int64_t>;
std::map<int64_t, Clock> streams;
struct Stream {
  int64_t device;
  int priority;
};
std::vector<Stream> known{{0, 0}, {1, 0}};  // of numbers that are below COUNT, the default streams of the devices
std::vector<Clock> events;
Clock host;
thread_local int64_t current[COUNT] = {0, 1};

void join(Clock& into, const Clock& from) {
  for (const auto& [stream, number] : from) {
    auto& known = into[stream];
    known = std::max(known, number);
  }
}

int64_t launch_locked(int64_t stream) {
  auto& clock = streams[stream];
  join(clock, host);
  return ++clock[stream];
}

int64_t record_locked(int64_t stream) {
  launch_locked(stream);
  events.push_back(streams[stream]);
  return static_cast<int64_t>(events.size()) - 1;
}

// --- Memory: blocks with serial numbers, since addresses come again.

struct Block {
  void* memory;
  size_t bytes;
  int64_t serial;
  c10::DeviceIndex device;  // below 0: pinned memory of the host
  int64_t stream;           // that it was allocated on, and can be given to again as soon as it is free
};

int64_t last_serial = 0;
size_t used_bytes[COUNT] = {};
size_t most_bytes[COUNT] = {};
std::vector<int64_t> freed;
std::map<uintptr_t, size_t> pinned_blocks;

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (block->device < 0) {
      pinned_blocks.erase(reinterpret_cast<uintptr_t>(block->memory));
    } else {
      used_bytes[block->device] -= block->bytes;
      freed.push_back(block->serial);
    }
  }
  // Memory that is read after it was freed shows it.
  std::memset(block->memory, 0xff, block->bytes);
  std::free(block->memory);
  delete block;
}

struct Memory : public c10::Allocator {
  explicit Memory(c10::DeviceIndex device) : device_(device) {}

  c10::DataPtr allocate(size_t bytes) override {
    void* memory = nullptr;
    TORCH_CHECK(posix_memalign(&memory, 512, bytes ? bytes : 1) == 0, "out of memory");
    std::memset(memory, 0xff, bytes);  // NaN: memory comes uninitialised
    auto* block = new Block{memory, bytes, 0, device_, device_ < 0 ? -1 : current[device_]};
    std::lock_guard<std::mutex> lock(mutex);
    if (device_ < 0) {
      pinned_blocks[reinterpret_cast<uintptr_t>(memory)] = bytes;
      return {memory, block, &free_block, c10::Device(c10::DeviceType::CPU)};
    }
    block->serial = ++last_serial;
    used_bytes[device_] += bytes;
    most_bytes[device_] = std::max(most_bytes[device_], used_bytes[device_]);
    return {memory, block, &free_block, device_of(device_)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

  c10::DeviceIndex device_;
};

Memory* device_memory(c10::DeviceIndex index) {
  static Memory* memories[COUNT] = {new Memory(0), new Memory(1)};
  return memories[device_of(index).index()];
}

// --- Generators: Philox's state, seed and offset; the numbers themselves are drawn by the kernels.

struct Philox : public c10::GeneratorImpl {
  explicit Philox(c10::DeviceIndex index)
      : c10::GeneratorImpl(device_of(index), c10::DispatchKeySet(c10::DispatchKey::CUDA)) {}

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.dtype() == caffe2::TypeMeta::Make<uint8_t>() && state.numel() == 16, "RNG state is wrong size");
    std::memcpy(&seed_, state.data(), 8);
    std::memcpy(&offset_, static_cast<const char*>(state.data()) + 8, 8);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::empty({16}, at::TensorOptions(at::kByte));
    std::memcpy(state.data_ptr(), &seed_, 8);
    std::memcpy(static_cast<char*>(state.data_ptr()) + 8, &offset_, 8);
    return state.getIntrusivePtr();
  }

 private:
  Philox* clone_impl() const override {
    auto* copy = new Philox(device().index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

// --- What torch calls.

struct CUDAHooks : public at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs = {}) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return COUNT; }
  c10::DeviceIndex deviceCount() const override { return COUNT; }
  c10::DeviceIndex current_device() const override { return current_index; }
  c10::DeviceIndex getCurrentDevice() const override { return current_index; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current_index = index; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override { return std::exchange(current_index, index); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static auto* memory = new Memory(-1);
    return memory;
  }
  c10::Allocator* getCUDADeviceAllocator() const override { return device_memory(-1); }
  bool isPinnedPtr(const void* data) const override {
    const auto address = reinterpret_cast<uintptr_t>(data);
    std::lock_guard<std::mutex> lock(mutex);
    auto next = pinned_blocks.upper_bound(address);
    return next != pinned_blocks.begin() && address < std::prev(next)->first + std::max<size_t>(std::prev(next)->second, 1);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index = -1) const override {
    return at::make_generator<Philox>(index);
  }
  void deviceSynchronize(c10::DeviceIndex) const override {
    std::lock_guard<std::mutex> lock(mutex);
    for (const auto& [stream, clock] : streams) join(host, clock);
  }
};

struct Guard : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return device_of(std::exchange(current_index, device_of(device.index()).index()));
  }
  c10::Device getDevice() const override { return device_of(-1); }
  void setDevice(c10::Device device) const override { exchangeDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { exchangeDevice(device); }
  c10::DeviceIndex deviceCount() const noexcept override { return COUNT; }
  c10::Stream getStream(c10::Device device) const override {
    const auto found = device_of(device.index());
    return stream_of(current[found.index()], found);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    const auto found = device_of(device.index());
    return stream_of(found.index(), found);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_of(std::exchange(current[stream.device_index()], stream.id()), stream.device());
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    std::lock_guard<std::mutex> lock(mutex);
    if (!*event) *event = new int64_t;
    *static_cast<int64_t*>(*event) = record_locked(stream.id());
  }
  void block(void* event, const c10::Stream& stream) const override {
    std::lock_guard<std::mutex> lock(mutex);
    join(streams[stream.id()], events[*static_cast<int64_t*>(event)]);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<int64_t*>(event); }
  bool queryStream(const c10::Stream&) const override { return true; }

 private:
  static c10::Stream stream_of(int64_t id, c10::Device device) { return c10::Stream(c10::Stream::UNSAFE, device, id); }
};

at::Tensor empty_device(at::IntArrayRef size, at::IntArrayRef stride, at::ScalarType dtype, int64_t index) {
  const auto keys = c10::DispatchKeySet(c10::DispatchKey::CUDA);
  return at::detail::empty_strided_generic(size, stride, device_memory(index), keys, dtype);
}

// Tensor of the host over the memory of one of the device, which it keeps alive.
at::Tensor host_view(const at::Tensor& tensor) {
  const auto& storage = tensor.storage();
  auto* owner = new c10::Storage(storage);
  auto view = c10::Storage(
      c10::Storage::use_byte_size_t(), storage.nbytes(),
      c10::DataPtr(const_cast<void*>(storage.data()), owner,
                   [](void* context) { delete static_cast<c10::Storage*>(context); },
                   c10::Device(c10::DeviceType::CPU)),
      nullptr, false);
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(view), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return made;
}

// Tensor of the device over the storage of `owner`, with the shape of `shape`, a view of its host view.
at::Tensor device_view(const at::Tensor& owner, const at::Tensor& shape) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(owner.storage()), c10::DispatchKeySet(c10::DispatchKey::CUDA), shape.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes(), shape.strides(), shape.storage_offset());
  return made;
}

// Give an empty tensor of the device new memory of a shape, as `out` arguments get it.
void resize(const at::Tensor& tensor, const at::Tensor& shape) {
  auto made = empty_device(shape.sizes(), shape.strides(), tensor.scalar_type(), tensor.device().index());
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(made.storage());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes(), shape.strides(), 0);
}

// Number of a generator, of which Python may have several objects.
int64_t generator_id(const at::Generator& generator) {
  return reinterpret_cast<int64_t>(generator.unsafeGetGeneratorImpl());
}

// Number of the block of memory, and the stream that it was allocated on.
std::tuple<int64_t, int64_t> block(const at::Tensor& tensor) {
  const auto* found = static_cast<Block*>(tensor.storage().data_ptr().get_context());
  return {found ? found->serial : 0, found ? found->stream : 0};
}

}  // namespace

C10_REGISTER_GUARD_IMPL(CUDA, Guard)
namespace at {
REGISTER_CUDA_HOOKS(CUDAHooks)
}

TORCH_LIBRARY(simulated, library) {
  library.def("empty_device(int[] size, int[] stride, ScalarType dtype, int index) -> Tensor", &empty_device);
  library.def("host_view(Tensor self) -> Tensor");
  library.def("device_view(Tensor owner, Tensor shape) -> Tensor");
  library.def("generator_id(Generator? generator) -> int", &generator_id);
  library.def("resize(Tensor self, Tensor shape) -> ()");
  library.def("block(Tensor self) -> (int, int)");
}

TORCH_LIBRARY_IMPL(simulated, CompositeExplicitAutograd, library) {
  library.impl("host_view", &host_view);
  library.impl("device_view", &device_view);
  library.impl("resize", &resize);
  library.impl("block", &block);
}

extern "C" {

int64_t device_count() { return COUNT; }
int64_t current_device() { return current_index; }
void set_current_device(int64_t index) { current_index = index; }

// Current stream of a device, below 0 the current one.
int64_t current_stream(int64_t index) { return current[device_of(index).index()]; }

int64_t new_stream(int64_t index, int priority) {
  std::lock_guard<std::mutex> lock(mutex);
  known.push_back({device_of(index).index(), priority});
  return static_cast<int64_t>(known.size()) - 1;
}

int64_t device_of_stream(int64_t stream) {
  std::lock_guard<std::mutex> lock(mutex);
  return known[stream].device;
}

int priority_of(int64_t stream) {
  std::lock_guard<std::mutex> lock(mutex);
  return known[stream].priority;
}

void set_current_stream(int64_t stream) { current[device_of_stream(stream)] = stream; }

int64_t launch(int64_t stream) {
  std::lock_guard<std::mutex> lock(mutex);
  return launch_locked(stream);
}

int is_after(int64_t stream, int64_t other, int64_t number) {
  std::lock_guard<std::mutex> lock(mutex);
  return streams[stream][other] >= number;
}

int host_is_after(int64_t other, int64_t number) {
  std::lock_guard<std::mutex> lock(mutex);
  return host[other] >= number;
}

int64_t record_event(int64_t stream) {
  std::lock_guard<std::mutex> lock(mutex);
  return record_locked(stream);
}

void stream_waits(int64_t stream, int64_t event) {
  std::lock_guard<std::mutex> lock(mutex);
  join(streams[stream], events[event]);
}

void host_waits(int64_t event) {
  std::lock_guard<std::mutex> lock(mutex);
  join(host, events[event]);
}

int host_is_after_event(int64_t event) {
  std::lock_guard<std::mutex> lock(mutex);
  for (const auto& [stream, number] : events[event])
    if (host[stream] < number) return 0;
  return 1;
}

void host_waits_for_stream(int64_t stream) {
  std::lock_guard<std::mutex> lock(mutex);
  join(host, streams[stream]);
}

int host_is_after_stream(int64_t stream) {
  std::lock_guard<std::mutex> lock(mutex);
  return host[stream] >= streams[stream][stream];
}

void host_waits_for_all() {
  std::lock_guard<std::mutex> lock(mutex);
  for (const auto& [stream, clock] : streams) join(host, clock);
}

int64_t bytes_in_use(int64_t index) {
  std::lock_guard<std::mutex> lock(mutex);
  return static_cast<int64_t>(used_bytes[device_of(index).index()]);
}

// The most that was in use since the last call of `reset_most_bytes`.
int64_t most_bytes_in_use(int64_t index) {
  std::lock_guard<std::mutex> lock(mutex);
  return static_cast<int64_t>(most_bytes[device_of(index).index()]);
}

void reset_most_bytes(int64_t index) {
  std::lock_guard<std::mutex> lock(mutex);
  most_bytes[device_of(index).index()] = used_bytes[device_of(index).index()];
}

// Serial numbers of blocks freed since the last call, at most `size` of them.
int64_t take_freed(int64_t* serials, int64_t size) {
  std::lock_guard<std::mutex> lock(mutex);
  int64_t count = std::min<int64_t>(size, static_cast<int64_t>(freed.size()));
  for (int64_t index = 0; index < count; ++index) {
    serials[index] = freed.back();
    freed.pop_back();
  }
  return count;
}
}
