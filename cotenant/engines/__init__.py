"""Beside the engines that people already run: they execute, enforce and account; cotenant decides which jobs share."""
