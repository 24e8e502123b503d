//! What a rank asks of its communicator, and what it must bring and gets.

use hip_abi::rccl::{DataType, Op};
use std::fmt;

/// What a call does, with what all ranks of a collective must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    AllReduce(Op),
    AllGather,
    ReduceScatter(Op),
    Broadcast {
        root: usize,
    },
    /// To this rank.
    Send(usize),
    /// From this rank.
    Recv(usize),
}

/// A call's kind, type and number of elements, as its C function is given them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub kind: Kind,
    pub dtype: DataType,
    pub count: usize,
}

impl Call {
    /// Bytes that a rank of `size` brings; none if they are beyond all memory.
    pub fn send_bytes(&self, rank: usize, size: usize) -> Option<usize> {
        let elements = match self.kind {
            Kind::AllReduce(_) | Kind::AllGather | Kind::Send(_) => self.count,
            Kind::ReduceScatter(_) => self.count.checked_mul(size)?,
            Kind::Broadcast { root } if root == rank => self.count,
            Kind::Broadcast { .. } | Kind::Recv(_) => 0,
        };
        elements.checked_mul(self.dtype.bytes())
    }

    /// Bytes that a rank of `size` gets.
    pub fn recv_bytes(&self, size: usize) -> Option<usize> {
        let elements = match self.kind {
            Kind::AllReduce(_)
            | Kind::ReduceScatter(_)
            | Kind::Broadcast { .. }
            | Kind::Recv(_) => self.count,
            Kind::AllGather => self.count.checked_mul(size)?,
            Kind::Send(_) => 0,
        };
        elements.checked_mul(self.dtype.bytes())
    }

    /// The root or the other rank; 0 of calls that have none.
    pub fn partner(&self) -> usize {
        match self.kind {
            Kind::Broadcast { root: rank } | Kind::Send(rank) | Kind::Recv(rank) => rank,
            Kind::AllReduce(_) | Kind::AllGather | Kind::ReduceScatter(_) => 0,
        }
    }

    /// Distance from the start of what is sent to the start of what is received, in bytes, of a call in place.
    pub fn in_place(&self, rank: usize) -> isize {
        let part = (rank * self.count * self.dtype.bytes()) as isize;
        match self.kind {
            Kind::AllGather => -part,
            Kind::ReduceScatter(_) => part,
            _ => 0,
        }
    }

    /// The C function.
    pub fn function(&self) -> &'static str {
        match self.kind {
            Kind::AllReduce(_) => "ncclAllReduce",
            Kind::AllGather => "ncclAllGather",
            Kind::ReduceScatter(_) => "ncclReduceScatter",
            Kind::Broadcast { .. } => "ncclBroadcast",
            Kind::Send(_) => "ncclSend",
            Kind::Recv(_) => "ncclRecv",
        }
    }

    /// The kind and its parameter as bytes.
    pub fn encode(&self) -> [u8; 18] {
        let (kind, parameter) = match self.kind {
            Kind::AllReduce(op) => (0, op as usize),
            Kind::AllGather => (1, 0),
            Kind::ReduceScatter(op) => (2, op as usize),
            Kind::Broadcast { root } => (3, root),
            Kind::Send(peer) => (4, peer),
            Kind::Recv(peer) => (5, peer),
        };
        let mut bytes = [0; 18];
        (bytes[0], bytes[1]) = (kind, self.dtype as u8);
        bytes[2..10].copy_from_slice(&(parameter as u64).to_le_bytes());
        bytes[10..].copy_from_slice(&(self.count as u64).to_le_bytes());
        bytes
    }

    /// What [`encode`](Call::encode) made.
    pub fn decode(bytes: [u8; 18]) -> Option<Call> {
        let number = |at: usize| {
            let bytes: [u8; 8] = bytes[at..at + 8].try_into().ok()?;
            Some(u64::from_le_bytes(bytes) as usize)
        };
        let parameter = number(2)?;
        let op = || Op::from_code(parameter as i32);
        let kind = match bytes[0] {
            0 => Kind::AllReduce(op()?),
            1 => Kind::AllGather,
            2 => Kind::ReduceScatter(op()?),
            3 => Kind::Broadcast { root: parameter },
            4 => Kind::Send(parameter),
            5 => Kind::Recv(parameter),
            _ => return None,
        };
        let dtype = DataType::from_code(bytes[1].into())?;
        let count = number(10)?;
        Some(Call { kind, dtype, count })
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (function, Call { dtype, count, .. }) = (self.function(), self);
        write!(f, "{function} of {count} {dtype:?}")?;
        match self.kind {
            Kind::AllReduce(op) | Kind::ReduceScatter(op) => write!(f, ", {op:?}"),
            Kind::AllGather => Ok(()),
            Kind::Broadcast { root } => write!(f, " from rank {root}"),
            Kind::Send(peer) => write!(f, " to rank {peer}"),
            Kind::Recv(peer) => write!(f, " from rank {peer}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Call, Kind};
    use hip_abi::rccl::{DataType, Op};

    #[test]
    fn calls_survive_the_wire() {
        for kind in [
            Kind::AllReduce(Op::Max),
            Kind::AllGather,
            Kind::ReduceScatter(Op::Prod),
            Kind::Broadcast { root: 3 },
            Kind::Send(5),
            Kind::Recv(0),
        ] {
            let (dtype, count) = (DataType::Bfloat16, 1 << 40);
            let call = Call { kind, dtype, count };
            assert_eq!(Call::decode(call.encode()), Some(call));
        }
        assert_eq!(Call::decode([9; 18]), None);
    }

    #[test]
    fn sizes_are_those_of_the_c_functions() {
        let call = |kind| Call {
            kind,
            dtype: DataType::Float32,
            count: 10,
        };
        let bytes = |kind, rank| {
            let call = call(kind);
            (
                call.send_bytes(rank, 4).unwrap(),
                call.recv_bytes(4).unwrap(),
            )
        };
        assert_eq!(bytes(Kind::AllReduce(Op::Sum), 1), (40, 40));
        assert_eq!(bytes(Kind::AllGather, 1), (40, 160));
        assert_eq!(bytes(Kind::ReduceScatter(Op::Sum), 1), (160, 40));
        assert_eq!(bytes(Kind::Broadcast { root: 1 }, 1), (40, 40));
        assert_eq!(bytes(Kind::Broadcast { root: 1 }, 2), (0, 40));
        assert_eq!(call(Kind::AllGather).in_place(2), -80);
    }
}
