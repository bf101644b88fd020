"""TensorFlow's own parameter servers in a run of l2rtui: handwritten digits, asynchronously, from TF_CONFIG alone.

Every server and every worker of the run is this program (manifests/ps-tensorflow.yaml). Variables lie on the
servers, each worker computes gradients and applies them there without waiting for the others, and ends when all
have taken TRAIN_STEPS together. A worker that comes too early looks every 30 s for the variables of the first.
Servers never end; the run's end ends them. Needs tensorflow and scikit-learn.

TensorFlow 2 runs such workers by its older interface: its newer ParameterServerStrategy wants one more process, a
coordinator, and workers that never end.
"""

import json
import os

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits

BATCH = int(os.environ.get("BATCH_SIZE", "50"))
RATE = float(os.environ.get("LEARNING_RATE", "0.01"))
STEPS = int(os.environ.get("TRAIN_STEPS", "400"))

tf.disable_eager_execution()
config = json.loads(os.environ["TF_CONFIG"])
kind, index = config["task"]["type"], config["task"]["index"]
server = tf.train.Server(config["cluster"], job_name=kind, task_index=index)
if kind == "ps":
    print(f"ps {index} listens at {config['cluster']['ps'][index]}", flush=True)
    server.join()

pixels, labels = load_digits(return_X_y=True)
pixels = (pixels / 16).astype(np.float32)
with tf.device(
    tf.train.replica_device_setter(cluster=config["cluster"], worker_device=f"/job:worker/task:{index}")
):
    seen = tf.placeholder(tf.float32, [None, 64])
    right = tf.placeholder(tf.int64, [None])
    hidden = tf.get_variable("hidden", [64, 64])
    bias = tf.get_variable("bias", [64], initializer=tf.zeros_initializer())
    last = tf.get_variable("last", [64, 10])
    logits = tf.matmul(tf.nn.relu(tf.matmul(seen, hidden) + bias), last)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=right, logits=logits))
    hits = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), right), tf.float32))
    global_step = tf.train.get_or_create_global_step()
    train = tf.train.AdamOptimizer(RATE).minimize(loss, global_step=global_step)

random = np.random.default_rng(index)
held_out = slice(1_500, None)
with tf.train.MonitoredTrainingSession(
    master=server.target,
    is_chief=index == 0,
    hooks=[tf.train.StopAtStepHook(last_step=STEPS)],
    config=tf.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"]),
) as session:
    local = 0
    while not session.should_stop():
        rows = random.integers(0, held_out.start, BATCH)
        _, step = session.run([train, global_step], {seen: pixels[rows], right: labels[rows]})
        local += 1
        if local % 50 == 0 and not session.should_stop():
            accuracy = session.run(hits, {seen: pixels[held_out], right: labels[held_out]})
            print(f"worker {index} local step {local} global step {step} accuracy {accuracy:.3f}", flush=True)
print(f"worker {index} is done after {local} steps of its own", flush=True)
