"""Bridges to engines that people already run: these execute, enforce and account; cotenant decides which jobs share."""
