"""Warnings about a training that is under way: numbers that are not finite, gradients that FP16 loses, a slow instance."""
