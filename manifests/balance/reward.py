"""Reward of balance.py: 1 for a mass that rests in the middle."""

import math


def reward(position, speed):
    return math.exp(-4.0 * position**2 - speed**2)
