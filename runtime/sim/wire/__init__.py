"""The simulator's wire protocol: control methods, actions, poses, cameras."""
