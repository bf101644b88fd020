"""Import paths of Gymnasium ids as they were published before; the environments are in `runtime.rl.envs`."""
