"""The operations themselves: functions of tensors, with the signatures that the engine calls."""
