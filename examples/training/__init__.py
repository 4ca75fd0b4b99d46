"""Small real trainings, written the way a user of cotenant would write them."""
