"""Device that torch takes for a CUDA one, in the memory of the host: streams, graphs, pinned memory, no speed.

For machines without a card. Code that asks for `cuda` runs as it would there, with its values, and what a card
would refuse or, worse, get wrong once in a while is an error: tensors of two devices, a capture that waits for the
device or draws from a generator that its graph does not know, a stream that reads what another one may still be
writing, memory that is freed while another stream reads it, pinned memory that the host reads before it has arrived
or overwrites before it has been read.

`library` must be imported before torch; `simulation.install` then makes torch find the device. The plugin of
pytest does both, also for the processes that tests start. It does not know cuDNN, NCCL, several devices, or what a
kernel of CUDA rounds otherwise than that of the host.
"""
