package rpc

import pb "pulse/proto/pulse/v1"

// This file is the Feed of a node without a replica: its Watch tells another
// node which topics are watched here, and publishes what that node answers.

// track makes the feed remember which topics come and go.
func (f *Feed) track() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed == nil {
		f.changed = map[string]struct{}{}
	}
}

// note remembers a topic that came or went. f.mu is held.
func (f *Feed) note(id string) {
	if f.changed == nil {
		return
	}
	f.changed[id] = struct{}{}
	select {
	case f.tell <- struct{}{}:
	default:
	}
}

// tellAll is what a source has to hear first: every topic. told is filled with
// them.
func (f *Feed) tellAll(told map[string]struct{}) *pb.WatchRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.changed)
	out := &pb.WatchRequest{}
	for id := range f.topics {
		told[id] = struct{}{}
		out.Add = append(out.Add, []byte(id))
	}
	return out
}

// tellChanges is what the source has to hear next, nil for nothing. told, which
// it keeps current, are the topics it has heard of. A topic that went and came
// again in between was watched all the time.
func (f *Feed) tellChanges(told map[string]struct{}) *pb.WatchRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &pb.WatchRequest{}
	for id := range f.changed {
		_, known := told[id]
		switch watched := f.topics[id] != nil; {
		case watched && !known:
			told[id] = struct{}{}
			out.Add = append(out.Add, []byte(id))
		case !watched && known:
			delete(told, id)
			out.Remove = append(out.Remove, []byte(id))
		}
	}
	clear(f.changed)
	if len(out.Add)+len(out.Remove) == 0 {
		return nil
	}
	return out
}

// publishTopics wakes the watchers of these topics, after index was applied
// where they are watched.
func (f *Feed) publishTopics(index uint64, ids [][]byte) {
	f.advance(index)
	if len(ids) == 0 {
		return
	}
	f.mu.Lock()
	for _, id := range ids {
		f.mark(f.topics[string(id)])
	}
	f.mu.Unlock()
	f.signal()
}
