"""Race tracks and cars: geometry, geographic frames, vehicle dynamics; NumPy alone."""
