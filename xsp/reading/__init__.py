"""Makes trees and traces of recordings by pure functions of plain data."""
