"""The processes that train together, and this one's place among them, from what their launcher says in the environment."""
