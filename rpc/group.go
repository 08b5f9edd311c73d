package rpc

// Group is many subscriptions to a Feed with one wake-up, held for another node
// that watches on behalf of its own clients. It costs a map entry for each topic
// and no goroutine. It has one user.
type Group struct {
	feed *Feed
	wake chan struct{} // capacity 1

	topics map[string]*topic   // guarded by Feed.mu
	dirty  map[string]struct{} // guarded by Feed.mu: changed since Take
}

// Group makes a group that watches nothing yet.
func (f *Feed) Group() *Group {
	return &Group{feed: f, wake: make(chan struct{}, 1), topics: map[string]*topic{}, dirty: map[string]struct{}{}}
}

// Change adds and removes topics, task ids or the empty one for everything. What
// is added counts as changed: whoever read before it was watched reads again.
func (g *Group) Change(add, remove [][]byte) {
	g.feed.mu.Lock()
	for _, id := range remove {
		g.drop(string(id))
	}
	for _, b := range add {
		id := string(b)
		if g.topics[id] == nil {
			t := g.feed.topic(id)
			t.groups[g] = struct{}{}
			g.topics[id] = t
		}
		g.dirty[id] = struct{}{}
	}
	g.feed.mu.Unlock()
	if len(add) > 0 {
		select {
		case g.wake <- struct{}{}:
		default:
		}
	}
}

// drop leaves a topic. Feed.mu is held.
func (g *Group) drop(id string) {
	t := g.topics[id]
	if t == nil {
		return
	}
	delete(g.topics, id)
	delete(g.dirty, id)
	delete(t.groups, g)
	g.feed.release(t)
}

// Wake is readable after changes. Wake-ups coalesce.
func (g *Group) Wake() <-chan struct{} { return g.wake }

// Take returns the topics that changed since the last call.
func (g *Group) Take() [][]byte {
	g.feed.mu.Lock()
	defer g.feed.mu.Unlock()
	out := make([][]byte, 0, len(g.dirty))
	for id := range g.dirty {
		out = append(out, []byte(id))
	}
	clear(g.dirty)
	return out
}

// Size is how many topics are watched.
func (g *Group) Size() int {
	g.feed.mu.Lock()
	defer g.feed.mu.Unlock()
	return len(g.topics)
}

// Close leaves every topic.
func (g *Group) Close() {
	g.feed.mu.Lock()
	defer g.feed.mu.Unlock()
	for id := range g.topics {
		g.drop(id)
	}
}
